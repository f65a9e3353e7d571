{{- define "holdfast.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "holdfast.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "holdfast.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "holdfast.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Cluster-scoped objects of two releases in two namespaces must not have the same name. */}}
{{- define "holdfast.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "holdfast.fullname" .) }}
{{- end }}

{{- define "holdfast.selectorLabels" -}}
app.kubernetes.io/name: {{ include "holdfast.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "holdfast.labels" -}}
{{ include "holdfast.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "holdfast.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "holdfast.fullname" .) }}
{{- else }}
{{- required "`serviceAccount.name` is required but not set: serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "holdfast.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- define "holdfast.tlsSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "holdfast.fullname" .)) }}
{{- end }}

{{/* The host name to which agents connect. The leaf certificate is issued for it. */}}
{{- define "holdfast.serviceHost" -}}
{{- printf "%s.%s.svc" (include "holdfast.fullname" .) .Release.Namespace }}
{{- end }}

{{/* The operator's permissions on namespaced objects of users. */}}
{{- define "holdfast.namespacedRules" -}}
- apiGroups: [holdfast.dev]
  resources: [trainingjobs]
  # patch: to set the finalizer. delete: to remove jobs whose time to live is over.
  verbs: [get, list, watch, patch, delete]
- apiGroups: [holdfast.dev]
  resources: [trainingjobs/status]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  # patch: to count repetitions of an Event.
  verbs: [create, patch]
{{- if .Values.rbac.ownerReferencesPermissionEnforcement }}
- apiGroups: [holdfast.dev]
  resources: [trainingjobs/finalizers]
  verbs: [update]
{{- end }}
{{- end }}

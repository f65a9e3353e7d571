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
{{- $repository := required "`image.repository` is required but not set: the repository with the image of the Dockerfile's target `operator`" .Values.image.repository }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{/* Helm's Secret outlives the release. cert-manager has another one, so that neither finds half of the other's. */}}
{{- define "holdfast.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled }}
{{- printf "%s-cert" (include "holdfast.fullname" .) }}
{{- else }}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "holdfast.fullname" .)) }}
{{- end }}
{{- end }}

{{/* The host name to which agents connect. The leaf certificate is issued for it. */}}
{{- define "holdfast.serviceHost" -}}
{{- printf "%s.%s.svc" (include "holdfast.fullname" .) .Release.Namespace }}
{{- end }}

{{/* How leader and standby find different nodes. Only pods of one revision count: during an upgrade there are more. */}}
{{- define "holdfast.spread" -}}
{{- if .Values.topologySpreadConstraints }}
{{- toYaml .Values.topologySpreadConstraints }}
{{- else }}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  {{- if eq .Values.spread "required" }}
  whenUnsatisfiable: DoNotSchedule
  # A cordoned node counts: the pod waits for it, instead of staying on the other pod's node for good.
  nodeTaintsPolicy: Ignore
  {{- else }}
  whenUnsatisfiable: ScheduleAnyway
  nodeTaintsPolicy: Honor
  {{- end }}
  labelSelector:
    matchLabels:
      {{- include "holdfast.selectorLabels" . | nindent 6 }}
  matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}

{{/* Where the operator's pods and the pod of `helm test` may run. */}}
{{- define "holdfast.placement" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  {{- range $condition := list "not-ready" "unreachable" }}
  - key: node.kubernetes.io/{{ $condition }}
    operator: Exists
    effect: NoExecute
    tolerationSeconds: {{ $.Values.nodeFailureSeconds | int64 }}
  {{- end }}
  {{- with .Values.tolerations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
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

{{/* Refuses values that are right one by one and contradict each other or the chart. Renders nothing. */}}
{{- define "holdfast.validate" -}}
{{- include "holdfast.validateTls" .Values.tls }}
{{- if and (eq .Values.spread "required") .Values.topologySpreadConstraints }}
{{- fail "`spread`: found \"required\" beside `topologySpreadConstraints`, allowed: one of the two" }}
{{- end }}
{{- $own := keys (include "holdfast.labels" . | fromYaml) | concat (list "holdfast.dev/service") }}
{{- range $field := list "deploymentLabels" "podLabels" "serviceLabels" }}
{{- range $label, $_ := index $.Values $field }}
{{- if has $label $own }}
{{- fail (printf "`%s`: found %s, allowed: labels that the chart does not set" $field $label) }}
{{- end }}
{{- end }}
{{- end }}
{{- range .Values.extraEnv }}
{{- if hasPrefix "HOLDFAST_OPERATOR_" .name }}
{{- fail (printf "`extraEnv`: found %s, allowed: names without HOLDFAST_OPERATOR_, which the chart sets from other values" .name) }}
{{- end }}
{{- end }}
{{- range .Values.extraVolumes }}
{{- if has .name (list "tls" "tmp") }}
{{- fail (printf "`extraVolumes`: found the name %s, allowed: names other than tls and tmp, which the chart uses" .name) }}
{{- end }}
{{- end }}
{{- range .Values.extraVolumeMounts }}
{{- if has (clean .mountPath) (list "/tmp" "/etc/holdfast/tls") }}
{{- fail (printf "`extraVolumeMounts`: found the path %s, allowed: paths other than /tmp and /etc/holdfast/tls" .mountPath) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "holdfast.validateTls" -}}
{{- if and .existingSecret .certManager.enabled }}
{{- fail (printf "`tls.existingSecret`: found %q beside `tls.certManager.enabled`, allowed: one of the two" .existingSecret) }}
{{- end }}
{{- if and .certManager.issuerRef (not .certManager.enabled) }}
{{- fail "`tls.certManager.issuerRef`: found an issuer while `tls.certManager.enabled` is false, allowed: an issuer of an enabled cert-manager" }}
{{- end }}
{{- if and .certManager.issuerRef (not .certManager.issuerRef.name) }}
{{- fail "`tls.certManager.issuerRef.name` is required but not set" }}
{{- end }}
{{- if gt (int .leafDays) (int .caDays) }}
{{- fail (printf "`tls.leafDays`: found %d, allowed: at most `tls.caDays` (%d)" (int .leafDays) (int .caDays)) }}
{{- end }}
{{- end }}

{{- define "asynclane.name" -}}
{{ default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "asynclane.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "asynclane.name" .) .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-%s" .Release.Name (include "asynclane.name" .) | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "asynclane.selector" -}}
app.kubernetes.io/name: {{ include "asynclane.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "asynclane.labels" -}}
{{ include "asynclane.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "asynclane.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "asynclane.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end }}

{{- define "asynclane.keysSecret" -}}
{{- if .Values.apiKeys.existingSecret -}}
{{ .Values.apiKeys.existingSecret }}
{{- else if .Values.apiKeys.entries -}}
{{ include "asynclane.fullname" . }}-keys
{{- end -}}
{{- end }}

{{/* A claim that one node may mount does not serve replicas on several, nor a new Pod beside an old one. */}}
{{- define "asynclane.checkClaim" -}}
{{- $surge := dig "rollingUpdate" "maxSurge" (ternary 0 "25%" (eq (dig "type" "RollingUpdate" .root.Values.strategy) "Recreate")) .root.Values.strategy -}}
{{- $surges := not (has (toString $surge) (list "0" "0%")) -}}
{{- $many := or (gt (int .root.Values.replicas) 1) (ne .root.Values.autoscaling.kind "none") $surges -}}
{{- $shared := or (has "ReadWriteMany" .claim.accessModes) (has "ReadOnlyMany" .claim.accessModes) -}}
{{- if and $many (not .claim.existingClaim) (not $shared) -}}
{{- fail (printf "%s.accessModes: more than one replica, or a maxSurge above 0, needs ReadWriteMany, or an existingClaim" .name) -}}
{{- end -}}
{{- end }}

{{/* Tensor parallelism takes a GPU for each of its ranks. */}}
{{- define "asynclane.checkGpus" -}}
{{- $ranks := int (default 1 .Values.settings.tensor_parallel_size) -}}
{{- if and .Values.gpu.count (ne $ranks (int .Values.gpu.count)) -}}
{{- fail (printf "gpu.count is %d, but settings.tensor_parallel_size %d: they must be the same" (int .Values.gpu.count) $ranks) -}}
{{- end -}}
{{- end }}

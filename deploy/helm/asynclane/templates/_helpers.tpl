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

{{/* A claim that one node may mount does not serve replicas on several. */}}
{{- define "asynclane.checkClaim" -}}
{{- $many := or (gt (int .root.Values.replicas) 1) (ne .root.Values.autoscaling.kind "none") -}}
{{- $shared := or (has "ReadWriteMany" .claim.accessModes) (has "ReadOnlyMany" .claim.accessModes) -}}
{{- if and $many (not .claim.existingClaim) (not $shared) -}}
{{- fail (printf "%s.accessModes: more than one replica needs ReadWriteMany, or an existingClaim" .name) -}}
{{- end -}}
{{- end }}

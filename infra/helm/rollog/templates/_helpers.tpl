{{/* Name of everything of this release. */}}
{{- define "rollog.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "rollog.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .role }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "rollog.labels" -}}
{{ include "rollog.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
rollog/run: {{ .root.Values.run.name }}
{{- end -}}

{{- define "rollog.metadata" -}}
name: {{ include "rollog.fullname" .root }}-{{ .role }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "rollog.labels" . | nindent 2 }}
{{- end -}}

{{- define "rollog.image" -}}
{{- $image := .Values.image -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "rollog.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "rollog.fullname" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{- define "rollog.sharedClaim" -}}
{{ .Values.shared.existingClaim | default (printf "%s-shared" (include "rollog.fullname" .)) }}
{{- end -}}

{{- define "rollog.trainerClaim" -}}
{{ .Values.trainer.persistence.existingClaim | default (printf "%s-trainer" (include "rollog.fullname" .)) }}
{{- end -}}

{{/* Whether weights go through the shared volume. */}}
{{- define "rollog.sharesWeights" -}}
{{- if and .Values.shared.enabled (not .Values.weights.uri) -}}yes{{- end -}}
{{- end -}}

{{/* User and secret of a role: with strimzi.users those that the operator makes. */}}
{{- define "rollog.username" -}}
{{- $user := index .root.Values.broker.security.users .role -}}
{{- $user.username | default (printf "%s-%s" (include "rollog.fullname" .root) .role) -}}
{{- end -}}
{{- define "rollog.userSecret" -}}
{{- $user := index .root.Values.broker.security.users .role -}}
{{- $made := .root.Values.strimzi.users | empty | ternary "" (include "rollog.username" .) -}}
{{- $user.secret | default $made -}}
{{- end -}}

{{- define "rollog.usesSasl" -}}
{{- if hasPrefix "SASL_" .Values.broker.security.protocol -}}yes{{- end -}}
{{- end -}}
{{- define "rollog.usesTls" -}}
{{- if contains "SSL" .Values.broker.security.protocol -}}yes{{- end -}}
{{- end -}}

{{- define "rollog.podSecurity" -}}
runAsNonRoot: true
runAsUser: 1000
runAsGroup: 1000
fsGroup: 1000
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "rollog.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Variables of every role. */}}
{{- define "rollog.environment" -}}
{{- $values := .root.Values -}}
- {name: HOME, value: /tmp}
- {name: ROLLOG_HOME, value: /var/lib/rollog}
- {name: ROLLOG_RUN__NAME, value: {{ $values.run.name | quote }}}
- {name: ROLLOG_RUN__PREFIX, value: {{ $values.run.prefix | quote }}}
- {name: ROLLOG_BROKER__BOOTSTRAP_SERVERS, value: {{ required "broker.bootstrapServers: say where Kafka is, host:port[,host:port]" $values.broker.bootstrapServers | quote }}}
{{- include "rollog.brokerEnvironment" . }}
{{- with $values.weights.uri }}
- {name: ROLLOG_WEIGHTS__URI, value: {{ . | quote }}}
{{- end }}
{{- if ne .role "creator" }}
- {name: ROLLOG_METRICS__HOST, value: 0.0.0.0}
- {name: ROLLOG_METRICS__PORT, value: {{ $values.monitoring.port | quote }}}
- {name: KEEP_RUNNING_STAY, value: /tmp/ended}
{{- end }}
{{- range $name, $value := merge (dict) (dig .role "environment" (dict) ($values | toYaml | fromYaml)) $values.environment }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{- define "rollog.environmentFrom" -}}
{{- $values := .root.Values -}}
{{- $needsStore := and $values.weights.secretEnvironment (ne .role "dispatcher") -}}
{{- if or $needsStore $values.secretEnvironment }}
envFrom:
  {{- if $needsStore }}
  - secretRef: {name: {{ $values.weights.secretEnvironment }}}
  {{- end }}
  {{- range $values.secretEnvironment }}
  - secretRef: {name: {{ . }}}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Mounts that every container has; the role's own ones follow. */}}
{{- define "rollog.mounts" -}}
{{- $values := .root.Values -}}
- {name: home, mountPath: /var/lib/rollog}
- {name: tmp, mountPath: /tmp}
{{- if $values.run.config }}
- {name: run, mountPath: /etc/rollog/run, readOnly: true}
{{- end }}
{{- if and (include "rollog.usesTls" .root) $values.broker.security.ca.secret }}
- {name: broker-ca, mountPath: /etc/rollog/ca, readOnly: true}
{{- end }}
{{- if include "rollog.userSecret" . }}
- {name: broker-user, mountPath: /etc/rollog/user, readOnly: true}
{{- end }}
{{- range $index, $claim := $values.readOnlyClaims }}
- {name: claim-{{ $index }}, mountPath: {{ $claim.mountPath }}, readOnly: true}
{{- end }}
{{- end -}}

{{- define "rollog.volumes" -}}
{{- $values := .root.Values -}}
- {name: tmp, emptyDir: {}}
{{- if $values.run.config }}
- name: run
  configMap: {name: {{ include "rollog.fullname" .root }}-run}
{{- end }}
{{- if and (include "rollog.usesTls" .root) $values.broker.security.ca.secret }}
- name: broker-ca
  secret:
    secretName: {{ $values.broker.security.ca.secret }}
    defaultMode: 0440
    items: [{key: {{ $values.broker.security.ca.key }}, path: ca.pem}]
{{- end }}
{{- with include "rollog.userSecret" . }}
- name: broker-user
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- if $values.shared.enabled }}
- name: shared
  persistentVolumeClaim: {claimName: {{ include "rollog.sharedClaim" .root }}}
{{- end }}
{{- range $index, $claim := $values.readOnlyClaims }}
- name: claim-{{ $index }}
  persistentVolumeClaim: {claimName: {{ $claim.claim }}, readOnly: true}
{{- end }}
{{- end -}}

{{/* Waits, before anything is mounted by a path inside the shared volume, until the creator has made its folders. */}}
{{- define "rollog.waitForFolders" -}}
{{- if .root.Values.shared.enabled }}
initContainers:
  - name: folders
    image: {{ include "rollog.image" .root }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command: [/bin/sh, -euc]
    args:
      - until [ -d "/shared/weights/{{ .root.Values.run.name }}/payloads" ] && [ -d /shared/cache ]; do sleep 2; done
    securityContext: {{- include "rollog.containerSecurity" . | nindent 6 }}
    resources:
      requests: {cpu: 10m, memory: 16Mi, ephemeral-storage: 1Mi}
      limits: {cpu: 100m, memory: 64Mi, ephemeral-storage: 16Mi}
    volumeMounts:
      - {name: shared, mountPath: /shared, readOnly: true}
{{- end }}
{{- end -}}

{{- define "rollog.probes" -}}
startupProbe:
  exec: {command: [role-answers, live]}
  periodSeconds: 10
  timeoutSeconds: 10
  failureThreshold: {{ add 30 (div .root.Values.run.waitSeconds 10) }}
livenessProbe:
  exec: {command: [role-answers, live]}
  periodSeconds: 30
  timeoutSeconds: 15
  failureThreshold: 6
readinessProbe:
  exec: {command: [role-answers, ready]}
  periodSeconds: 15
  timeoutSeconds: 15
{{- end -}}

{{- define "rollog.resources" -}}
{{- $limits := merge (deepCopy (.accelerators | default dict)) .resources.limits -}}
{{- $requests := merge (deepCopy (.accelerators | default dict)) .resources.requests -}}
requests: {{- toYaml $requests | nindent 2 }}
limits: {{- toYaml $limits | nindent 2 }}
{{- end -}}

{{- define "rollog.common" -}}
{{- $role := index .root.Values .role -}}
serviceAccountName: {{ include "rollog.serviceAccount" .root }}
automountServiceAccountToken: false
enableServiceLinks: false
# The first process then ends what others left behind.
shareProcessNamespace: true
terminationGracePeriodSeconds: {{ $role.terminationGracePeriodSeconds }}
securityContext: {{- include "rollog.podSecurity" . | nindent 2 }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $role.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $role.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $role.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $role.affinity }}
affinity: {{- toYaml $role.affinity | nindent 2 }}
{{- else if ne .role "dispatcher" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 1
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "rollog.selector" . | nindent 14 }}
{{- end }}
{{- end -}}

{{/* How a role connects: places of secrets, never a secret. */}}
{{- define "rollog.brokerEnvironment" -}}
{{- $security := .root.Values.broker.security -}}
{{- if ne $security.protocol "PLAINTEXT" }}
- {name: ROLLOG_BROKER__SECURITY__PROTOCOL, value: {{ $security.protocol }}}
{{- if and (include "rollog.usesTls" .root) $security.ca.secret }}
- {name: ROLLOG_BROKER__SECURITY__CA_FILE, value: /etc/rollog/ca/ca.pem}
{{- end }}
{{- if include "rollog.usesSasl" .root }}
{{- $_ := required (printf "broker.security.users.%s.secret: name the Secret with the password of this role" .role) (include "rollog.userSecret" .) }}
- {name: ROLLOG_BROKER__SECURITY__MECHANISM, value: {{ $security.mechanism }}}
- {name: ROLLOG_BROKER__SECURITY__USERNAME, value: {{ include "rollog.username" . | toJson | squote }}}
- {name: ROLLOG_BROKER__SECURITY__PASSWORD_FILE, value: /etc/rollog/user/{{ (index $security.users .role).key }}}
{{- else if include "rollog.userSecret" . }}
- {name: ROLLOG_BROKER__SECURITY__CERTIFICATE_FILE, value: /etc/rollog/user/user.crt}
- {name: ROLLOG_BROKER__SECURITY__KEY_FILE, value: /etc/rollog/user/user.key}
{{- end }}
{{- end }}
{{- end -}}

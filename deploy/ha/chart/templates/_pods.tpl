{{/* Parts that all pods share. */}}

{{- define "borg.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Spread the pods of one part over nodes. Arguments: part, and required or preferred. */}}
{{- define "borg.spread" -}}
podAntiAffinity:
  {{- if .required }}
  requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector: {matchLabels: {app: borg, part: {{ .part }}}}
  {{- else }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector: {matchLabels: {app: borg, part: {{ .part }}}}
  {{- end }}
{{- end }}

{{/* The settings of all processes of Borg. What differs from borg.env is what a pod has instead of a host. */}}
{{- define "borg.settings" -}}
envFrom:
  - secretRef: {name: {{ .Values.settings }}}
env:
  - {name: HOME, value: /var/lib/borg}
  - {name: BORG_AUTHORITY, value: /srv/borg/authority}
  - {name: BORG_WEB_CERTIFICATE, value: /etc/borg/tls/portal.crt}
  - {name: BORG_WEB_KEY, value: /etc/borg/tls/portal.key}
securityContext: {{- include "borg.security" . | nindent 2 }}
volumeMounts:
  - {name: tls, mountPath: /etc/borg/tls, readOnly: true}
  - {name: shared, mountPath: /srv/borg}
  - {name: home, mountPath: /var/lib/borg}
  - {name: tmp, mountPath: /tmp}
{{- end }}

{{- define "borg.volumes" -}}
volumes:
  - {name: tls, secret: {secretName: {{ .Values.tls }}, defaultMode: 0440}}
  - {name: shared, persistentVolumeClaim: {claimName: {{ .Values.shared }}}}
  - {name: home, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
securityContext: {runAsUser: 10001, runAsGroup: 10001, fsGroup: 10001, runAsNonRoot: true}
{{- end }}

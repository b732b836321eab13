{{- define "agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "agent.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if contains (include "agent.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "agent.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "agent.selector" -}}
app.kubernetes.io/name: {{ include "agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* managed-by names who made the object. The agent's own name is the mark on what the agent makes, so it is never used here. */}}
{{- define "agent.labels" -}}
{{ include "agent.selector" . }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/component: agent
app.kubernetes.io/part-of: llm-access
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "agent.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "agent.fullname" .) -}}
{{- else -}}
{{- required "serviceAccount.name is needed when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "agent.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- define "agent.catalogueName" -}}
{{- .Values.catalogue.existingConfigMap | default (printf "%s-catalogue" (include "agent.fullname" .)) -}}
{{- end -}}

{{/* "true" when Secrets are kept in this cluster, and so rights in it are needed. */}}
{{- define "agent.inCluster" -}}
{{- $secrets := .Values.config.secrets -}}
{{- if and (eq $secrets.store "kubernetes") (not $secrets.kubeconfig) (not $secrets.api_url) -}}true{{- end -}}
{{- end -}}

{{/* "true" when the agent makes events in this cluster. */}}
{{- define "agent.events" -}}
{{- if and (include "agent.inCluster" .) (dig "events" "enabled" true .Values.config) -}}true{{- end -}}
{{- end -}}

{{/* The Deployments in a namespace that the agent restarts when their chat Secret changes, as a JSON list. */}}
{{- define "agent.restarted" -}}
{{- $secrets := .root.Values.config.secrets -}}
{{- $namespace := .namespace -}}
{{- $all := list -}}
{{- if kindIs "map" $secrets.chat_namespace -}}
{{- range $project, $chat := $secrets.chat_namespace -}}
{{- if eq $chat $namespace -}}
{{- if kindIs "map" $secrets.restart -}}
{{- with get $secrets.restart $project -}}{{- $all = append $all . -}}{{- end -}}
{{- else -}}
{{- $all = append $all $secrets.restart -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- else if eq $secrets.chat_namespace $namespace -}}
{{- if kindIs "map" $secrets.restart -}}{{- $all = values $secrets.restart -}}{{- else -}}{{- $all = list $secrets.restart -}}{{- end -}}
{{- end -}}
{{- $all | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* "true" when replicas have to agree on who acts. */}}
{{- define "agent.lease" -}}
{{- if or (gt (int .Values.replicas) 1) .Values.config.lease -}}
{{- if not (include "agent.inCluster" .) -}}
{{- fail "more than one replica needs config.secrets.store: kubernetes in this cluster: the Lease is kept where the Secrets are" -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{- define "agent.leaseName" -}}
{{- dig "lease" "name" (include "agent.fullname" .) .Values.config -}}
{{- end -}}

{{- define "agent.leaseNamespace" -}}
{{- dig "lease" "namespace" .Release.Namespace .Values.config -}}
{{- end -}}

{{/* Every namespace that holds Secrets of the agent, once, as a JSON list. */}}
{{- define "agent.secretNamespaces" -}}
{{- $secrets := .Values.config.secrets -}}
{{- $all := list (required "config.secrets.key_namespace is needed" $secrets.key_namespace) -}}
{{- if kindIs "map" $secrets.chat_namespace -}}
{{- range $project, $namespace := $secrets.chat_namespace -}}{{- $all = append $all $namespace -}}{{- end -}}
{{- else -}}
{{- $all = append $all (required "config.secrets.chat_namespace is needed" $secrets.chat_namespace) -}}
{{- end -}}
{{- $all | uniq | sortAlpha | toJson -}}
{{- end -}}

{{/* The agent's configuration: what follows from the other values, under what config says. */}}
{{- define "agent.config" -}}
{{- $waldur := dict -}}
{{- $gateway := dict "key_file" "/etc/llm-access/credentials/gateway/key" -}}
{{- if .Values.config.waldur.oidc -}}
{{- $_ := set $waldur "oidc" (dict "client_secret_file" "/etc/llm-access/credentials/waldur/token") -}}
{{- else -}}
{{- $_ := set $waldur "token_file" "/etc/llm-access/credentials/waldur/token" -}}
{{- end -}}
{{- if .Values.extraCa.existingConfigMap -}}
{{- $_ := set $waldur "ca_file" "/etc/llm-access/ca/ca.crt" -}}
{{- $_ := set $gateway "ca_file" "/etc/llm-access/ca/ca.crt" -}}
{{- end -}}
{{- $derived := dict
      "waldur" $waldur
      "gateway" $gateway
      "catalogue" (dict "file" "/etc/llm-access/catalogue/inference.yml")
      "http" (dict "listen" (printf "0.0.0.0:%d" (int .Values.port))) -}}
{{- if include "agent.events" . -}}
{{- $_ := set $derived "events" (dict "enabled" true) -}}
{{- end -}}
{{- if include "agent.lease" . -}}
{{- $_ := set $derived "lease" (dict "namespace" (include "agent.leaseNamespace" .) "name" (include "agent.leaseName" .)) -}}
{{- end -}}
{{- mergeOverwrite $derived (deepCopy .Values.config) | toYaml -}}
{{- end -}}

# Sourced by `peers`: etcd and a kube-apiserver of one run, with RBAC on. There is no controller manager: namespaces do not
# finish deleting, and owner references collect nothing.
#
# Who may call, by bearer token: admin (system:masters), and the service accounts agent and agent2 of the namespace
# llm-access, which have no rights until a test grants them.

certificates() {
  local folder=$1
  mkdir -p "$folder"
  (
    cd "$folder"
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 30 -subj '/CN=llm-access test authority' \
      -addext keyUsage=critical,keyCertSign,digitalSignature -keyout ca.key -out ca.crt
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj '/CN=kube-apiserver' -keyout server.key -out server.csr
    printf '%s\n' 'subjectAltName=IP:127.0.0.1,DNS:localhost,DNS:kubernetes.default.svc' 'extendedKeyUsage=serverAuth' 'basicConstraints=critical,CA:FALSE' >server.ext
    openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 30 -extfile server.ext -out server.crt
    openssl ecparam -name prime256v1 -genkey -noout -out service-accounts.key
    openssl ec -in service-accounts.key -pubout -out service-accounts.pub
  ) >/dev/null 2>&1
}

kube_ready() {
  curl -sf -m 2 --cacert "$(recall KUBE_CA_FILE)" -H "Authorization: Bearer $(recall KUBE_ADMIN_TOKEN)" "$(recall KUBE_URL)/readyz"
}

kube_up() {
  local bin=$CACHE/kube/bin api store peering group name
  certificates "$STATE/pki"
  api=$(run_port 10)
  store=$(free_port $((api + 1)))
  peering=$(free_port $((store + 1)))
  remember KUBE_URL "https://127.0.0.1:$api"
  remember KUBE_CA_FILE "$STATE/pki/ca.crt"
  for name in ADMIN AGENT AGENT2; do remember "KUBE_${name}_TOKEN" "$(openssl rand -hex 16)"; done
  group='"system:serviceaccounts,system:serviceaccounts:llm-access,system:authenticated"'
  {
    echo "$(recall KUBE_ADMIN_TOKEN),admin,1,\"system:masters\""
    echo "$(recall KUBE_AGENT_TOKEN),system:serviceaccount:llm-access:agent,2,$group"
    echo "$(recall KUBE_AGENT2_TOKEN),system:serviceaccount:llm-access:agent2,3,$group"
  } >"$STATE/pki/tokens.csv"
  remember KUBECTL "$bin/kubectl"
  remember KUBECONFIG "$STATE/kubeconfig"
  cat >"$STATE/kubeconfig" <<CONFIG
apiVersion: v1
kind: Config
clusters:
- {name: test, cluster: {server: "$(recall KUBE_URL)", certificate-authority: "$STATE/pki/ca.crt"}}
users:
- {name: admin, user: {token: "$(recall KUBE_ADMIN_TOKEN)"}}
- {name: agent, user: {token: "$(recall KUBE_AGENT_TOKEN)"}}
- {name: agent2, user: {token: "$(recall KUBE_AGENT2_TOKEN)"}}
contexts:
- {name: admin, context: {cluster: test, user: admin}}
- {name: agent, context: {cluster: test, user: agent, namespace: llm-access}}
- {name: agent2, context: {cluster: test, user: agent2, namespace: llm-access}}
current-context: admin
CONFIG

  launch etcd "$bin/etcd" --data-dir "$STATE/etcd" --unsafe-no-fsync \
    --listen-client-urls "http://127.0.0.1:$store" --advertise-client-urls "http://127.0.0.1:$store" \
    --listen-peer-urls "http://127.0.0.1:$peering" --initial-advertise-peer-urls "http://127.0.0.1:$peering" \
    --initial-cluster "default=http://127.0.0.1:$peering"
  remember ETCD_URL "http://127.0.0.1:$store"
  await etcd 30 curl -sf -m 2 "$(recall ETCD_URL)/health"
  apiserver_launch
}

apiserver_launch() {
  local url
  url=$(recall KUBE_URL)
  running apiserver && return
  # ServiceAccount admission would hold back every pod until a controller has made its account's token: there is none here.
  launch apiserver "$CACHE/kube/bin/kube-apiserver" --etcd-servers="$(recall ETCD_URL)" \
    --bind-address=127.0.0.1 --advertise-address=127.0.0.1 --secure-port="${url##*:}" \
    --tls-cert-file="$STATE/pki/server.crt" --tls-private-key-file="$STATE/pki/server.key" \
    --token-auth-file="$STATE/pki/tokens.csv" --authorization-mode=RBAC \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$STATE/pki/service-accounts.pub" \
    --service-account-signing-key-file="$STATE/pki/service-accounts.key" \
    --service-cluster-ip-range=10.96.0.0/16 --endpoint-reconciler-type=none \
    --disable-admission-plugins=ServiceAccount --enable-priority-and-fairness=false
}

kube_await() { await apiserver 120 kube_ready; }

# etcd keeps its state.
apiserver_stop() { halt apiserver; }

kube_down() {
  halt apiserver
  halt etcd
}

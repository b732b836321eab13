# Sourced by `peers`: the LiteLLM proxies of one run, their PostgreSQL and their model server.
#
# A variant is a proxy of its own with a database of its own, on the same PostgreSQL and the same model server:
#   default         what an operator gets who changes nothing
#   team-defaults   litellm_settings.default_team_params gives every new team a budget and a limit that nobody ordered
#   no-custom-keys  general_settings.disable_custom_api_keys refuses keys whose value the caller chose
. "$REAL/litellm/postgres.sh"
. "$REAL/litellm/environment.sh"

VARIANTS='default team-defaults no-custom-keys'

# LITELLM_URL, LITELLM_TEAM_DEFAULTS_URL, LITELLM_NO_CUSTOM_KEYS_URL
variant_key() {
  case $1 in
    default) echo LITELLM_URL ;;
    *) echo "LITELLM_$(echo "$1" | tr 'a-z-' 'A-Z_')_URL" ;;
  esac
}

check_variant() {
  case " $VARIANTS " in *" $1 "*) ;; *) die "no variant '$1': there are $VARIANTS" ;; esac
}

database_start() { pg_start "$STATE/pgdata" "$(recall DATABASE_PORT)" "$STATE/postgres.log"; }
database_stop() { pg_stop "$STATE/pgdata"; }

litellm_up() {
  local port
  cp -a "$CACHE/litellm/pgdata" "$STATE/pgdata"
  port=$(run_port 16)
  remember DATABASE_PORT "$port"
  database_start

  port=$(run_port 15)
  remember UPSTREAM_URL "http://127.0.0.1:$port"
  UPSTREAM_PORT=$port UPSTREAM_MODELS=kestrel-8b-instruct,heron-70b-instruct,qwen2.5-0.5b-instruct,qwen3-embedding-0.6b \
    launch upstream node "$REAL/litellm/upstream.js"
  await upstream 20 curl -sf -m 2 "$(recall UPSTREAM_URL)/health"

  remember LITELLM_MASTER_KEY "sk-$(openssl rand -hex 16)"
  openssl rand -hex 16 >"$STATE/salt"
}

# proxy_launch VARIANT: starts it without waiting. A variant keeps its port and database from start to start.
proxy_launch() {
  local variant=$1 url port database litellm_settings='' general_settings=''
  check_variant "$variant"
  running "proxy-$variant" && return
  case $variant in
    team-defaults) litellm_settings='default_team_params: {max_budget: 100, budget_duration: "30d", tpm_limit: 1000}' ;;
    no-custom-keys) general_settings='disable_custom_api_keys: true' ;;
  esac
  sed -e "s#@UPSTREAM@#$(recall UPSTREAM_URL)#" -e "s#@LITELLM_SETTINGS@#$litellm_settings#" \
    -e "s#@GENERAL_SETTINGS@#$general_settings#" "$REAL/litellm/config.yaml" >"$STATE/$variant.yaml"

  database=litellm_${variant//-/_}
  url=$(recall "$(variant_key "$variant")")
  if [ -z "$url" ]; then
    psql_at "$(recall DATABASE_PORT)" postgres -c "CREATE DATABASE $database TEMPLATE litellm"
    port=$(run_port 0)
    while port=$(free_port "$port") && grep -q ":$port\$" "$STATE/env"; do port=$((port + 1)); done
    url=http://127.0.0.1:$port
    remember "$(variant_key "$variant")" "$url"
  fi
  (
    litellm_environment "$CACHE/litellm"
    export DATABASE_URL="postgresql://postgres@127.0.0.1:$(recall DATABASE_PORT)/$database"
    export LITELLM_MASTER_KEY LITELLM_SALT_KEY
    LITELLM_MASTER_KEY=$(recall LITELLM_MASTER_KEY) LITELLM_SALT_KEY=sk-$(cat "$STATE/salt")
    # The tables are made by the set-up; the price list is the one in the package; nothing is reported anywhere.
    export DISABLE_SCHEMA_UPDATE=true STORE_MODEL_IN_DB=True LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_TELEMETRY=False
    export NO_DOCS=True DISABLE_ADMIN_UI=True
    # Usage rows after 2 to 7 s instead of 10 to 15, and expired budgets reset after 15 to 20 s instead of ten minutes.
    export PROXY_BATCH_WRITE_AT=2 PROXY_BUDGET_RESCHEDULER_MIN_TIME=15 PROXY_BUDGET_RESCHEDULER_MAX_TIME=20
    cd "$STATE"
    launch "proxy-$variant" "$CACHE/litellm/venv/bin/python" "$REAL/litellm/proxy.py" \
      --config "$STATE/$variant.yaml" --host 127.0.0.1 --port "${url##*:}" --num_workers 1
  )
}

proxy_ready() { curl -sf -m 3 "$1/health/readiness" | grep -q '"connected"'; }

proxy_await() { await "proxy-$1" 240 proxy_ready "$(recall "$(variant_key "$1")")"; }

# SIGTERM: the proxy writes the spend that it still holds, which a kill would lose.
proxy_stop() {
  check_variant "$1"
  halt "proxy-$1"
}

litellm_down() {
  local variant
  for variant in $VARIANTS; do kill -TERM "$(cat "$STATE/proxy-$variant.pid" 2>/dev/null)" 2>/dev/null || true; done
  for variant in $VARIANTS; do proxy_stop "$variant"; done
  halt upstream
  [ ! -f "$STATE/pgdata/postmaster.pid" ] || database_stop
}

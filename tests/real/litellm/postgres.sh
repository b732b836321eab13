# Sourced: a throw-away PostgreSQL on loopback. Its programs refuse to run as root, so root hands them to `postgres`.

pg_programs() {
  local found
  found=$(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1)
  if [ -n "$found" ]; then echo "$found"; else dirname "$(command -v initdb)"; fi
}

pg_run() {
  local program
  program=$(pg_programs)/$1
  shift
  if is_root; then (cd / && runuser -u postgres -- "$program" "$@"); else "$program" "$@"; fi
}

# pg_start DATA PORT LOG
pg_start() {
  touch "$3"
  if is_root; then chown postgres "$3"; fi
  # Nothing here outlives a run: durability would only cost time.
  pg_run pg_ctl -D "$1" -l "$3" -w -t 60 -s start \
    -o "-p $2 -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off -c full_page_writes=off -c max_connections=60" \
    </dev/null 9>&- || { tail -n 20 "$3" >&2; return 1; }
}

# pg_stop DATA: breaks open connections off, as an outage does.
pg_stop() { pg_run pg_ctl -D "$1" -m fast -w -s stop || true; }

# psql_at PORT DATABASE ARGUMENT…
psql_at() {
  local port=$1 database=$2
  shift 2
  "$(pg_programs)/psql" -q -X -h 127.0.0.1 -p "$port" -U postgres -d "$database" -v ON_ERROR_STOP=1 "$@"
}

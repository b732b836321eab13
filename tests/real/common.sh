# Sourced by the other scripts here: settings, messages, packages, processes and ports.

set -euo pipefail

REAL=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
CACHE=${LLM_ACCESS_CACHE:-/var/cache/llm-access-agent}

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }
is_root() { [ "$(id -u)" = 0 ]; }

# need COMMAND PACKAGE…: makes sure that COMMAND exists, installing the Debian packages when we may.
APT_UPDATED=
need() {
  local command=$1
  shift
  command -v "$command" >/dev/null && return
  is_root && command -v apt-get >/dev/null || die "$command is missing: install $* (Debian package names), or run this as root"
  apt_install "$@"
  command -v "$command" >/dev/null || die "$command is still missing after installing $*"
}

apt_install() {
  say "installing $*"
  # Indexes of other vendors' sources may be out of reach; what we need is Debian's, and the install tells when it is not there.
  [ -n "$APT_UPDATED" ] || apt-get update -qq >/dev/null 2>&1 || true
  APT_UPDATED=yes
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# prepare_cache NAME STAMP: empties and makes $CACHE/NAME unless it is complete for STAMP; true when there is work to do.
# Sets HOME_DIR. The caller calls `finish_cache STAMP` at the end. Only one set-up at a time.
prepare_cache() {
  mkdir -p "$CACHE"
  exec 9>"$CACHE/.lock"
  flock 9
  HOME_DIR=$CACHE/$1
  [ "$(cat "$HOME_DIR/complete" 2>/dev/null)" != "$2" ] || return 1
  rm -rf "$HOME_DIR"
  mkdir -p "$HOME_DIR"
}

finish_cache() {
  printf '%s\n' "$1" >"$HOME_DIR/complete"
  exec 9>&-
}

stamp_of() { cat "$@" | sha256sum | cut -c1-16; }

# launch NAME COMMAND…: starts COMMAND in the background in a process group of its own, which NAME.pid in $STATE names.
launch() {
  local name=$1
  shift
  setsid "$@" >>"$STATE/$name.log" 2>&1 </dev/null 9>&- &
  echo $! >"$STATE/$name.pid"
}

running() {
  local pid
  pid=$(cat "$STATE/$1.pid" 2>/dev/null) && kill -0 "$pid" 2>/dev/null
}

# halt NAME: asks NAME to end, waits up to 30 s, then ends what is left of its process group.
halt() {
  local file=$STATE/$1.pid pid
  pid=$(cat "$file" 2>/dev/null) || return 0
  kill -TERM "$pid" 2>/dev/null || true
  for _ in $(seq 1 300); do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  kill -KILL -- "-$pid" 2>/dev/null || true
  rm -f "$file"
}

# await NAME SECONDS COMMAND…: until COMMAND succeeds; ends with NAME's last log lines when NAME dies or time is up.
await() {
  local name=$1 tries=$(($2 * 4))
  shift 2
  for _ in $(seq 1 "$tries"); do
    "$@" >/dev/null 2>&1 && return
    running "$name" || break
    sleep 0.25
  done
  say "$name did not become ready; the end of its log:"
  tail -n 30 "$STATE/$name.log" >&2 || true
  return 1
}

# The first port from $1 on that nobody listens on.
free_port() {
  local port=$1
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
  echo "$port"
}

# run_port N: a free port for the N-th listener of this run. They are below those that the system hands out by itself, which
# others may take while a proxy starts, and each run counts from a place of its own.
run_port() {
  local place
  place=$(printf '%s' "$STATE" | cksum | cut -d ' ' -f 1)
  free_port $((20000 + place % 500 * 20 + $1))
}

# remember NAME VALUE: a line of $STATE/env, which `peers env` prints and the tests get as environment variables.
remember() {
  sed -i "/^LLM_ACCESS_REAL_$1=/d" "$STATE/env"
  printf 'LLM_ACCESS_REAL_%s=%s\n' "$1" "$2" >>"$STATE/env"
}

recall() { sed -n "s/^LLM_ACCESS_REAL_$1=//p" "$STATE/env" 2>/dev/null; }

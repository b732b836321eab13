#!/usr/bin/env bash
# Installs the LiteLLM proxy, its database engine stand-in and a PostgreSQL cluster with the proxy's tables into the cache.
# One to four minutes and 0.9 GB the first time, nothing after that. Everything comes from PyPI, npm and Debian.
. "$(dirname "$0")/../common.sh"
. "$REAL/litellm/postgres.sh"
SOURCE=$REAL/litellm

need flock util-linux
need curl curl
need node nodejs
need npm npm
need python3 python3 python3-venv
python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "python3 is older than 3.10, which LiteLLM needs"
python3 -c 'import ensurepip, venv' 2>/dev/null || { is_root && apt_install python3-venv; } || die "python3 cannot make virtual environments: install python3-venv"
if [ ! -x "$(pg_programs 2>/dev/null)/initdb" ]; then
  is_root || die "PostgreSQL is missing: install postgresql (Debian package name), or run this as root"
  # We bring up clusters of our own: the package need not start one.
  mkdir -p /etc/postgresql-common
  [ -e /etc/postgresql-common/createcluster.conf ] || echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf
  apt_install postgresql
fi

STAMP=$(stamp_of "$SOURCE/requirements.txt" "$SOURCE/package.json" "$SOURCE/install.sh")
prepare_cache litellm "$STAMP" || exit 0
if is_root; then
  runuser -u postgres -- test -x "$HOME_DIR" || die "the user postgres cannot enter $HOME_DIR: set LLM_ACCESS_CACHE to a folder it can reach"
fi
say "setting up LiteLLM in $HOME_DIR (one to four minutes, once)"
cd "$HOME_DIR"

python3 -m venv venv
venv/bin/pip install -q --disable-pip-version-check --no-input --no-deps -r "$SOURCE/requirements.txt"
PACKAGES=$(venv/bin/python -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

# --ignore-scripts: the Prisma packages would download native engines, which is what the stand-in is for.
mkdir prisma
cp "$SOURCE/package.json" prisma/
(cd prisma && npm install --ignore-scripts --no-audit --no-fund --no-package-lock --loglevel=error >/dev/null)

# The ORM's classes, generated from the proxy's schema by the Prisma command in the folder above.
. "$SOURCE/environment.sh"
litellm_environment "$HOME_DIR"
(cd "$HOME_DIR" && PATH=$HOME_DIR/venv/bin:$PATH venv/bin/prisma generate --schema "$PACKAGES/litellm/proxy/schema.prisma" >prisma/generate.log 2>&1) ||
  { cat prisma/generate.log >&2; die "prisma generate failed"; }

mkdir pgdata
if is_root; then chown postgres pgdata; fi
pg_run initdb -D "$HOME_DIR/pgdata" -A trust -U postgres -E UTF8 --locale=C.UTF-8 --wal-segsize=4 >/dev/null
# Below the ports that the system hands out by itself.
PORT=$(free_port 10490)
pg_start "$HOME_DIR/pgdata" "$PORT" "$HOME_DIR/pgdata.log"
trap 'pg_stop "$HOME_DIR/pgdata"' EXIT
psql_at "$PORT" postgres -c 'CREATE DATABASE litellm'
# Names sort by date. One of them contains spaces, and the table of spend logs is in it.
MIGRATIONS=$PACKAGES/litellm_proxy_extras/migrations
find "$MIGRATIONS" -mindepth 2 -maxdepth 2 -name migration.sql | LC_ALL=C sort | sed "s/.*/\\\\i '&'/" >migrations.psql
PGOPTIONS='-c client_min_messages=warning' psql_at "$PORT" litellm -f migrations.psql >/dev/null
pg_stop "$HOME_DIR/pgdata"
trap - EXIT

finish_cache "$STAMP"
say "LiteLLM is set up"

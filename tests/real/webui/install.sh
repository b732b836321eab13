#!/usr/bin/env bash
# Installs Open WebUI from PyPI into the cache, without torch and other local models: one to three minutes and 0.8 GB the first
# time, nothing after that.
. "$(dirname "$0")/../common.sh"
SOURCE=$REAL/webui

need flock util-linux
need python3 python3 python3-venv
python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || die "Open WebUI needs Python 3.11 to 3.13"
python3 -c 'import ensurepip, venv' 2>/dev/null || { is_root && apt_install python3-venv; } || die "python3 cannot make virtual environments: install python3-venv"

STAMP=$(stamp_of "$SOURCE/requirements.txt" "$SOURCE/install.sh")
prepare_cache webui "$STAMP" || exit 0
say "setting up Open WebUI in $HOME_DIR (one to three minutes, once)"
python3 -m venv "$HOME_DIR/venv"
"$HOME_DIR/venv/bin/pip" install -q --disable-pip-version-check --no-input --no-cache-dir --no-deps -r "$SOURCE/requirements.txt"
finish_cache "$STAMP"
say "Open WebUI is set up"

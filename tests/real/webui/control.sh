# Sourced by `peers`: where a test finds Open WebUI. The tests start it themselves, each with the variables of a Secret of its own.
webui_up() { remember WEBUI "$REAL/webui/serve"; }

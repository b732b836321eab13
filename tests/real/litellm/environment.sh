# Sourced: litellm_environment FOLDER exports what the ORM below the proxy needs to find the stand-in and to fetch nothing.

litellm_environment() {
  local engine=$REAL/litellm/engine/query-engine
  export QUERY_ENGINE_MODULES=$1/prisma/node_modules
  export PRISMA_QUERY_ENGINE_BINARY=$engine PRISMA_QUERY_ENGINE_LIBRARY=$engine
  export PRISMA_SCHEMA_ENGINE_BINARY=$engine PRISMA_FMT_BINARY=$engine
  export PRISMA_BINARY_CACHE_DIR=$1/prisma PRISMA_USE_GLOBAL_NODE=true PRISMA_SKIP_POSTINSTALL_GENERATE=1
  export PRISMA_HIDE_UPDATE_MESSAGE=true CHECKPOINT_DISABLE=1 npm_config_ignore_scripts=true
}

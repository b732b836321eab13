'use strict';
// PostgreSQL for the WebAssembly engine: Prisma's own driver adapter, with two things it lacks. Columns of types that the
// adapter does not list come back as text instead of failing the query, and a lost or refused connection is told apart
// from an error of the query, so that the proxy sees what the native engine would tell it.

const fs = require('fs');
const { load, locate } = require('./modules');
const pg = load('pg');
const { PrismaPg } = load('@prisma/adapter-pg');
const { bindAdapter } = load('@prisma/driver-adapter-utils');

const TEXT = 25;
// Object identifiers of the built-in types that @prisma/adapter-pg 5.17.0 converts (its fieldToColumnType); those of
// user-defined types start at 10000 and are text to it already.
const CONVERTED = new Set([
  16, 17, 20, 21, 23, 25, 26, 114, 142, 143, 199, 650, 651, 700, 701, 790, 791, 869, 1000, 1001, 1002, 1005, 1007, 1009,
  1014, 1015, 1016, 1021, 1022, 1028, 1041, 1042, 1043, 1082, 1083, 1114, 1115, 1182, 1183, 1184, 1231, 1266, 1560, 1561,
  1562, 1563, 1700, 2950, 2951, 3802, 3807,
]);

class Unreachable extends Error {}

// SQLSTATE classes 08 (connection exception) and 57P (shut down, crashed, starting up).
const LOST_STATES = /^(08|57P0[1-3])/;
const LOST_MESSAGES = /connection (terminated|timeout|error)|timeout exceeded when trying to connect|not queryable/i;

function isLost(error) {
  if (!error) return false;
  if (['ECONNREFUSED', 'ECONNRESET', 'EPIPE', 'ETIMEDOUT'].includes(error.code)) return true;
  return LOST_STATES.test(error.code || '') || LOST_MESSAGES.test(error.message || '');
}

async function reaching(call) {
  let result;
  try {
    result = await call();
  } catch (error) {
    throw isLost(error) ? new Unreachable(error.message) : error;
  }
  if (!result.ok && isLost(result.error)) throw new Unreachable(result.error.message);
  return result;
}

// Changes one queryable of the adapter (the pool, or one transaction) in place.
function amend(queryable) {
  const perform = queryable.performIO.bind(queryable);
  queryable.performIO = async (query) => {
    const result = await reaching(() => perform(query));
    if (result.ok) {
      for (const field of result.value.fields || []) {
        if (field.dataTypeID < 10000 && !CONVERTED.has(field.dataTypeID)) field.dataTypeID = TEXT;
      }
    }
    return result;
  };
  return queryable;
}

class Adapter extends PrismaPg {
  async startTransaction() {
    const started = await reaching(() => super.startTransaction());
    return started.map(amend);
  }
}

class Database {
  constructor(text) {
    const url = new URL(text);
    // Parameters of the URL are the ORM's, not PostgreSQL's.
    const schema = url.searchParams.get('schema') || 'public';
    const connections = Number(url.searchParams.get('connection_limit')) || 10;
    url.search = '';
    this.host = url.hostname;
    this.port = Number(url.port) || 5432;
    const pool = new pg.Pool({
      connectionString: url.toString(),
      options: `-c search_path=${schema}`,
      max: connections,
      connectionTimeoutMillis: 5000,
    });
    // An idle connection that breaks is replaced at the next query; without a listener it would end the process.
    pool.on('error', (error) => console.error('[query-engine] idle connection lost:', error.message));
    this.adapter = bindAdapter(amend(new Adapter(pool, { schema })));
  }

  async engine(schemaText) {
    const glue = load('@prisma/client/runtime/query_engine_bg.postgresql.js');
    const wasm = fs.readFileSync(locate('@prisma/client/runtime/query_engine_bg.postgresql.wasm'));
    const instance = new WebAssembly.Instance(new WebAssembly.Module(wasm), { './query_engine_bg.js': glue });
    glue.__wbg_set_wasm(instance.exports);
    const settings = {
      datamodel: schemaText, env: process.env, ignoreEnvVarErrors: true, datasourceOverrides: {}, configDir: '.',
      engineProtocol: 'json', enableTracing: false, logQueries: false, logLevel: 'error',
    };
    const engine = new glue.QueryEngine(settings, () => {}, this.adapter);
    await engine.connect('{}');
    return engine;
  }

  // The error that the adapter threw, which the engine only knows by number.
  thrown(id) {
    const entry = this.adapter.errorRegistry.consumeError(id);
    return entry && entry.error;
  }
}

module.exports = { Database, Unreachable };

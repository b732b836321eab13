'use strict';
// Answers of the WebAssembly engine as Prisma Client Python expects them from the native one.

const { Unreachable } = require('./database');

// The JSON protocol tags what JSON cannot express; the GraphQL protocol sends the bare value.
function plainValue(value) {
  if (Array.isArray(value)) return value.map(plainValue);
  if (value === null || typeof value !== 'object') return value;
  if (typeof value.$type === 'string' && 'value' in value) {
    if (value.$type !== 'BigInt') return value.value;
    const number = Number(value.value);
    return Number.isSafeInteger(number) ? number : value.value;
  }
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, plainValue(inner)]));
}

function userFacing(code, message, meta) {
  return { error: message, user_facing_error: { is_panic: false, error_code: code, message, meta } };
}

// P2036 is "the driver adapter threw": put the native engine's words for the cause in its place.
function knownError(error, database) {
  const told = error.user_facing_error || {};
  if (told.error_code !== 'P2036' || !told.meta || told.meta.id === undefined) {
    return error.user_facing_error ? error : userFacing(undefined, error.error || 'unknown error', {});
  }
  const cause = database.thrown(told.meta.id);
  if (cause instanceof Unreachable) {
    const place = `\`${database.host}:${database.port}\``;
    return userFacing('P1001', `Can't reach database server at ${place}\n\nPlease make sure your database server is running at ${place}.`,
      { database_host: database.host, database_port: database.port });
  }
  return userFacing('P2010', String((cause && cause.message) || error.error), {});
}

module.exports = { plainValue, knownError };

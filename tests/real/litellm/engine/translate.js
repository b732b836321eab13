'use strict';
// GraphQL as Prisma Client Python writes it -> the JSON protocol of the WebAssembly engine.
//
// The GraphQL protocol knows from the schema when a string is JSON; the JSON protocol has to be told with a tag. The walk
// below follows the arguments through the schema and tags what belongs to a JSON field.

const { load } = require('./modules');
const { parse } = load('graphql');

// GraphQL root field -> action. The longest name that fits wins, hence the order.
const ACTIONS = [
  [/^findUnique(\w+)OrThrow$/, 'findUniqueOrThrow'],
  [/^findFirst(\w+)OrThrow$/, 'findFirstOrThrow'],
  ...['findUnique', 'findFirst', 'findMany', 'createOne', 'createMany', 'updateOne', 'updateMany', 'upsertOne',
    'deleteOne', 'deleteMany', 'aggregate', 'groupBy'].map((action) => [new RegExp(`^${action}(\\w+)$`), action]),
];
// Keys of a filter or update on a JSON field whose values are JSON themselves; `path` and `mode`, for example, are not.
const JSON_OPERANDS = new Set(['equals', 'not', 'set', 'lt', 'lte', 'gt', 'gte',
  'array_contains', 'array_starts_with', 'array_ends_with']);
const JSON_NULLS = new Set(['DbNull', 'JsonNull', 'AnyNull']);

function jsonValue(value) {
  if (typeof value === 'string') {
    return JSON_NULLS.has(value) ? { $type: 'Enum', value } : { $type: 'Json', value };
  }
  if (Array.isArray(value)) return value.map(jsonValue);
  if (value === null || typeof value !== 'object' || value.$type) return value;
  return mapObject(value, (key, inner) => (JSON_OPERANDS.has(key) ? jsonValue(inner) : inner));
}

function mapObject(object, change) {
  return Object.fromEntries(Object.entries(object).map(([key, value]) => [key, change(key, value)]));
}

class Tagger {
  constructor(schema) {
    this.schema = schema;
  }

  // `where`, `data`, `create` …: names of arguments or relation operations, never fields, even where a field is called so.
  operations(model, value) {
    if (Array.isArray(value)) return value.map((one) => this.operations(model, one));
    if (value === null || typeof value !== 'object') return value;
    return mapObject(value, (_, inner) => this.fields(model, inner));
  }

  fields(model, value) {
    if (Array.isArray(value)) return value.map((one) => this.fields(model, one));
    if (value === null || typeof value !== 'object' || value.$type) return value;
    return mapObject(value, (key, inner) => {
      const field = this.schema.field(model, key);
      if (field && field.json) return jsonValue(inner);
      if (field && field.model) return this.operations(field.model, inner);
      // AND/OR/NOT, compound keys, {set: …} of a scalar, and {where, data} below a relation operation
      return this.fields(model, inner);
    });
  }
}

function literal(node) {
  switch (node.kind) {
    case 'NullValue': return null;
    case 'BooleanValue': case 'StringValue': case 'EnumValue': return node.value;
    case 'FloatValue': return Number(node.value);
    case 'IntValue': {
      const number = Number(node.value);
      return Number.isSafeInteger(number) ? number : { $type: 'BigInt', value: node.value };
    }
    case 'ListValue': return node.values.map(literal);
    case 'ObjectValue': return named(node.fields);
    default: throw new Error(`a query holds a ${node.kind}, which the engine stand-in does not know`);
  }
}

function named(nodes) {
  return Object.fromEntries((nodes || []).map((node) => [node.name.value, literal(node.value)]));
}

function selection(set, model, tagger) {
  const chosen = {};
  for (const node of (set && set.selections) || []) {
    const key = node.name.value;
    if (!node.selectionSet && !(node.arguments && node.arguments.length)) {
      chosen[key] = true;
      continue;
    }
    const inner = (tagger.schema.field(model, key) || {}).model || model;
    chosen[key] = {
      arguments: tagger.operations(inner, named(node.arguments)),
      selection: selection(node.selectionSet, inner, tagger),
    };
  }
  return chosen;
}

// One GraphQL document -> its steps: {alias, raw, request}.
function translate(text, schema) {
  const tagger = new Tagger(schema);
  const roots = parse(text, { noLocation: true }).definitions.flatMap((one) => one.selectionSet.selections);
  return roots.map((node) => {
    const name = node.name.value;
    const alias = node.alias ? node.alias.value : name;
    const given = named(node.arguments);
    if (name === 'queryRaw' || name === 'executeRaw') {
      const query = { arguments: { parameters: '[]', ...given }, selection: {} };
      return { alias, raw: true, request: { action: name, query } };
    }
    for (const [pattern, action] of ACTIONS) {
      const found = pattern.exec(name);
      if (!found) continue;
      const modelName = found[1];
      const query = {
        arguments: tagger.operations(modelName, given),
        selection: selection(node.selectionSet, modelName, tagger),
      };
      return { alias, raw: false, request: { modelName, action, query } };
    }
    throw new Error(`a query asks for ${name}, which the engine stand-in does not know`);
  });
}

module.exports = { translate };

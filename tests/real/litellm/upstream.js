#!/usr/bin/env node
'use strict';
// A model server for the gateway under test: the OpenAI interface on loopback, with answers that the prompt decides.
//
//   P=120       prompt tokens of the usage block (default 10)
//   C=40        completion tokens (default 5)
//   CACHED=60   prompt tokens that came from the cache (default 0)
//   FAIL=503    answer with this status instead
//
// POST /v1/chat/completions (also streaming), POST /v1/embeddings, GET /v1/models, GET /health.
// UPSTREAM_PORT is the port, UPSTREAM_MODELS the comma-separated names that /v1/models lists.

const http = require('http');

const models = (process.env.UPSTREAM_MODELS || '').split(',').filter(Boolean);
const now = () => Math.floor(Date.now() / 1000);
let calls = 0;

function number(text, name, otherwise) {
  const found = new RegExp(`\\b${name}=(\\d+)`).exec(text);
  return found ? Number(found[1]) : otherwise;
}

function chat(request, usage, id, reply) {
  if (!request.stream) {
    const message = { role: 'assistant', content: 'Hello.' };
    const choices = [{ index: 0, message, finish_reason: 'stop' }];
    return reply(200, { id, object: 'chat.completion', created: now(), model: request.model, choices, usage });
  }
  const chunk = (choices, extra) => ({ id, object: 'chat.completion.chunk', created: now(), model: request.model, choices, ...extra });
  const delta = (part, reason) => chunk([{ index: 0, delta: part, finish_reason: reason }]);
  const chunks = [delta({ role: 'assistant', content: 'Hel' }, null), delta({ content: 'lo.' }, null), delta({}, 'stop')];
  if (request.stream_options && request.stream_options.include_usage) chunks.push(chunk([], { usage }));
  return reply(200, chunks.map((one) => `data: ${JSON.stringify(one)}\n\n`).join('') + 'data: [DONE]\n\n');
}

http.createServer(async (incoming, outgoing) => {
  const parts = [];
  for await (const part of incoming) parts.push(part);
  const reply = (status, body) => {
    const text = typeof body === 'string';
    outgoing.writeHead(status, { 'content-type': text ? 'text/event-stream' : 'application/json' });
    outgoing.end(text ? body : JSON.stringify(body));
  };
  const path = incoming.url.split('?')[0];
  if (path === '/health') return reply(200, { status: 'ok', calls });
  if (path === '/v1/models') {
    return reply(200, { object: 'list', data: models.map((id) => ({ id, object: 'model', created: now(), owned_by: 'upstream' })) });
  }
  let request;
  try {
    request = JSON.parse(Buffer.concat(parts).toString('utf8'));
  } catch {
    return reply(400, { error: { message: 'the body is not JSON', type: 'invalid_request_error', code: '400' } });
  }
  calls += 1;
  const said = JSON.stringify(request.messages ? request.messages.at(-1) : request.input);
  const fail = number(said, 'FAIL', 0);
  if (fail) return reply(fail, { error: { message: `asked to fail with ${fail}`, type: 'server_error', code: String(fail) } });
  const [prompt, completion, cached] = [number(said, 'P', 10), number(said, 'C', 5), number(said, 'CACHED', 0)];
  if (path === '/v1/embeddings') {
    const inputs = Array.isArray(request.input) ? request.input : [request.input];
    const data = inputs.map((_, index) => ({ object: 'embedding', index, embedding: [0.25, -0.5, 0.75] }));
    return reply(200, { object: 'list', model: request.model, data, usage: { prompt_tokens: prompt, total_tokens: prompt } });
  }
  if (path === '/v1/chat/completions') {
    const usage = {
      prompt_tokens: prompt, completion_tokens: completion, total_tokens: prompt + completion,
      prompt_tokens_details: { cached_tokens: cached },
    };
    return chat(request, usage, `chatcmpl-${process.pid}-${calls}`, reply);
  }
  return reply(404, { error: { message: `no such path: ${path}`, type: 'invalid_request_error', code: '404' } });
}).listen(Number(process.env.UPSTREAM_PORT), '127.0.0.1');

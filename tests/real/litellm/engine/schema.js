'use strict';
// What the translation has to know of the Prisma schema: which fields hold JSON, and which lead to another model.

class Schema {
  constructor(text) {
    this.text = text;
    this.models = new Map();
    const blocks = [...text.matchAll(/^model\s+(\w+)\s*\{([^]*?)^\}/gm)];
    for (const [, name] of blocks) this.models.set(name, new Map());
    for (const [, name, body] of blocks) {
      for (const line of body.split('\n')) {
        const field = /^\s*(\w+)\s+(\w+)/.exec(line);
        if (!field) continue; // comments, @@attributes and blank lines
        const [, key, type] = field;
        const kind = type === 'Json' ? { json: true } : this.models.has(type) ? { model: type } : {};
        this.models.get(name).set(key, kind);
      }
    }
  }

  // {json: true}, {model: 'Name'}, {} for any other field of the model, undefined when it has no such field.
  field(model, key) {
    const fields = this.models.get(model);
    return fields && fields.get(key);
  }

  // The WebAssembly engine only accepts a schema whose generator asks for driver adapters.
  textForEngine() {
    if (/previewFeatures/.test(this.text)) return this.text;
    return this.text.replace(/^generator\s+\w+\s*\{/m, '$&\n  previewFeatures = ["driverAdapters"]');
  }
}

module.exports = { Schema };

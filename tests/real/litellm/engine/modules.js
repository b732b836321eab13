'use strict';
// Loads packages from the folder that QUERY_ENGINE_MODULES names, so that nothing is installed beside this source.
const path = require('path');

const folder = process.env.QUERY_ENGINE_MODULES;
if (!folder) throw new Error('QUERY_ENGINE_MODULES must name the node_modules folder made by `tests/real/peers install litellm`');

exports.load = (name) => require(path.join(folder, name));
exports.locate = (name) => path.join(folder, name);

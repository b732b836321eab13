// monitoring.mjs FILE…: holds ServiceMonitor and PrometheusRule objects against the schemas of the Prometheus operator's CRDs.
import { readFileSync } from 'node:fs';
import { ServiceMonitor, PrometheusRule } from '@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1';
import { parseAllDocuments } from 'yaml';

const kinds = { ServiceMonitor, PrometheusRule };
let seen = 0;
let wrong = 0;
for (const file of process.argv.slice(2)) {
  for (const document of parseAllDocuments(readFileSync(file, 'utf8'))) {
    const object = document.toJS();
    const Kind = kinds[object?.kind];
    if (!Kind) continue;
    seen += 1;
    try {
      new Kind(object).validate();
    } catch (error) {
      wrong += 1;
      console.error(`${file}: ${object.kind} ${object.metadata?.name}: ${error.message}`);
    }
  }
}
if (seen === 0) console.error('no object of these kinds was found');
process.exit(seen > 0 && wrong === 0 ? 0 : 1);

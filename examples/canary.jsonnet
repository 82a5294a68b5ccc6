// A service whose first task tries the new version with a twentieth of the clients: borgctl submit examples/canary.jsonnet
// Without the override, `borgctl update` rolls it through the others. Change `weighted` alone, and nothing is restarted.
local borg = import 'borg.libsonnet';

borg.service('shop-web') + borg.partOf('shop') + borg.weighted('1-2', 10) {
  tasks: 3,
  task+: {
    command: ['python3', '-m', 'http.server', '$(port.http)'],
    limit: { cpu: '100m', ram: '64Mi', disk: '100Mi' },
    ports: ['http'],
    health: { http: '/', port: 'http' },
  },
  overrides+: { '0': { env: { VERSION: 'new' } } },
}

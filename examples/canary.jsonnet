// A service whose first task runs the new version for a twentieth of the clients: borgctl submit examples/canary.jsonnet
// To roll it out to the others, remove the override and run `borgctl update`. A change of only `weighted` restarts no task.
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

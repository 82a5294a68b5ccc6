// The track `blue` of service `store`, which gets all clients at first:
//   borgctl submit examples/blue-green/blue.jsonnet
//   borgctl service weights store blue=100
local borg = import 'borg.libsonnet';

borg.service('store-blue') + borg.partOf('store') + borg.remembered(1) {
  labels+: { track: 'blue' },
  tasks: 3,
  task+: {
    command: ['python3', '-m', 'http.server', '$(port.http)'],
    env: { VERSION: '1' },
    limit: { cpu: '100m', ram: '64Mi', disk: '100Mi' },
    ports: ['http'],
    health: { http: '/', port: 'http' },
  },
}

// The web servers of service `shop`: borgctl apply examples/shop, then borgctl service show shop
local borg = import 'borg.libsonnet';

borg.service('shop-web') + borg.partOf('shop') + borg.weighted('0-2', 10) {
  labels+: { app: 'shop', tier: 'web', track: 'stable' },
  tasks: 3,
  task+: {
    command: ['python3', '-m', 'http.server', '$(port.http)'],
    limit: { cpu: '100m', ram: '64Mi', disk: '100Mi' },
    ports: ['http'],
    health: { http: '/', port: 'http' },
  },
}

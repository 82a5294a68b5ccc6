// Three HTTP servers that are found by name:  borgctl submit examples/hello.jsonnet
local borg = import 'borg.libsonnet';

borg.job('hello') {
  priority: borg.production,
  tasks: 3,
  task+: {
    command: ['python3', '-m', 'http.server', '$(port.http)'],
    limit: { cpu: '100m', ram: '64Mi', disk: '100Mi' },
    ports: ['http'],
    health: { http: '/', port: 'http' },
  },
}

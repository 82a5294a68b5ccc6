// A server in each alloc of `shelf`. It moves together with the logs saver beside it.
local borg = import 'borg.libsonnet';

borg.service('shelf-web') + borg.inside('shelf') {
  tasks: 3,
  disruption_budget: 1,
  spread: { max_per_machine: 1 },
  task+: {
    command: ['python3', '-m', 'http.server', '$(port.http)'],
    limit: { cpu: '500m', ram: '128Mi', disk: '100Mi' },
    ports: ['http'],
    health: { http: '/', port: 'http' },
  },
}

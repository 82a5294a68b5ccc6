// Reserved capacity on three machines (§2.4). These jobs run inside: shelf-web.jsonnet and shelf-logs.jsonnet.
local borg = import 'borg.libsonnet';

borg.allocSet('shelf') {
  priority: borg.production,
  tasks: 3,
  spread: { max_per_machine: 1 },
  task+: { limit: { cpu: 1, ram: '512Mi', disk: '1Gi' } },
}

// A helper beside each server: less urgent, in the same envelope, at no further quota.
local borg = import 'borg.libsonnet';

borg.job('shelf-logs') + borg.inside('shelf') {
  priority: borg.batch,
  tasks: 3,
  spread: { max_per_machine: 1 },
  task+: {
    command: ['sh', '-c', 'while true; do date; sleep 10; done'],
    limit: { cpu: '100m', ram: '64Mi', disk: '100Mi' },
  },
}

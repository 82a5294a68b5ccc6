// A helper beside each server: lower priority, in the same alloc, without more quota. It copies the server's logs. When its
// alloc has left a machine, the helper runs there again for up to three days, until it has copied the rest.
local borg = import 'borg.libsonnet';

borg.job('shelf-logs') + borg.inside('shelf') {
  priority: borg.batch,
  tasks: 3,
  spread: { max_per_machine: 1 },
  saves_for_s: 3 * 86400,
  task+: {
    command: ['sh', '-c', |||
      save() { mkdir -p "$BORG_ALLOC_DIR/shared/saved" && cp -r "$BORG_ALLOC_DIR"/logs/. "$BORG_ALLOC_DIR/shared/saved/"; }
      if [ -n "$BORG_ALLOC_ENDED" ]; then save; exit; fi
      while save; do sleep 10; done
    |||],
    limit: { cpu: '100m', ram: '64Mi', disk: '100Mi' },
  },
}

// The canary track: one task with the next version, which gets one of 31 clients.
local stable = import 'web.jsonnet';

stable {
  name: 'shop-web-canary',
  labels+: { track: 'canary' },
  tasks: 1,
  task+: { env: { VERSION: 'next' } },
  overrides: {},
}

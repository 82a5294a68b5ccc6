// Job files in Jsonnet: `local borg = import 'borg.libsonnet';`
//
// Priorities may be written as a band's name or as a number inside it (§2.5 of the paper).
{
  monitoring: 'monitoring',
  production: 'production',
  batch: 'batch',
  free: 0,

  // A job; extend it with `{ ... }`, and its task with `task+: { ... }`.
  job(name):: {
    apiVersion: 'borg/v1',
    kind: 'Job',
    name: name,
    tasks: 1,
    task: { limit: {} },
  },

  // An alloc set: reserved resources on machines, in which jobs can run (§2.4).
  allocSet(name):: self.job(name) { kind: 'AllocSet' },

  // A job inside an alloc set of the same tenant: `borg.job('logs') + borg.inside('shelf') { … }`. It costs no quota
  // of its own, and is at most as urgent as the set.
  inside(allocSet):: { alloc_set: allocSet },

  // Part of a service: jobs of one tenant and cell that say the same NAME answer together as
  // NAME.service.<tenant>.<cell>.<zone> (§2.6).
  partOf(service):: { labels+: { service: service } },

  // Clients remember where its tasks are for so long; one that is to stop is out of the answers for as long, and a
  // second, before SIGTERM.
  remembered(ttl_s):: { names+: { ttl_s: ttl_s } },

  // Tasks (an index, or '0-9') with a share of the clients of their own; all others have 1.
  weighted(tasks, weight):: { overrides+: { [std.toString(tasks)]+: { weight: weight } } },

  // All pending tasks are placed together, or none of them.
  gang:: { gang: true },

  // A service: latency-sensitive, in production, started again whenever it ends.
  service(name):: self.job(name) {
    priority: $.production,
    appclass: 'latency-sensitive',
    task+: { restart: { on: 'always' } },
  },
}

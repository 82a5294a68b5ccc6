// The library for job files in Jsonnet: `local borg = import 'borg.libsonnet';`
//
// A priority is the name of a band, or a number inside a band (§2.5 of the paper).
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

  // A job inside an alloc set of the same tenant: `borg.job('logs') + borg.inside('shelf') { … }`. The job needs no
  // quota, and its priority is at most the priority of the set.
  inside(allocSet):: { alloc_set: allocSet },

  // A part of a service: jobs of one tenant and cell with the same service name share the DNS name
  // <service>.service.<tenant>.<cell>.<zone> (§2.6).
  partOf(service):: { labels+: { service: service } },

  // Clients may cache the addresses of the job's tasks for `ttl_s` seconds. A stopping task leaves the DNS answers
  // `ttl_s` + 1 seconds before SIGTERM.
  remembered(ttl_s):: { names+: { ttl_s: ttl_s } },

  // Sets the weight of tasks, which is their share of the clients. `tasks` is an index or a range such as '0-9'.
  // Other tasks have weight 1.
  weighted(tasks, weight):: { overrides+: { [std.toString(tasks)]+: { weight: weight } } },

  // All pending tasks of the job are placed together, or none of them is placed.
  gang:: { gang: true },

  // A job that serves requests: latency-sensitive, in the production band, and its tasks always restart.
  service(name):: self.job(name) {
    priority: $.production,
    appclass: 'latency-sensitive',
    task+: { restart: { on: 'always' } },
  },
}

"""One description for each field of a job file. The JSON Schema, editors and the reference documentation use them.

A test checks that every field has a description.
"""

from __future__ import annotations

FIELD_TEXTS = {
    "name": "Name of the job, a DNS label. It is unique among the live jobs of its tenant and cell.",
    "task": "The command that each task runs, and the resources that it needs.",
    "apiVersion": "Version of the format.",
    "kind": "`Job`, or `AllocSet` for reserved capacity that runs nothing itself (§2.4).",
    "tenant": "Tenant that the job belongs to. `borgctl` fills it in from `--tenant`.",
    "cell": "Cell that runs the job. `borgctl` fills it in from `--cell`.",
    "labels": (
        "Texts by which lists of jobs can be filtered. Jobs of one tenant and cell with the same label `service` also"
        " have the common name `NAME.service.<tenant>.<cell>.<zone>`."
    ),
    "priority": (
        "A number, or the name of a band. The tenant needs quota in that band. Work in the free band needs none."
    ),
    "appclass": "`latency-sensitive` or `batch` (§6.2). By default, the priority decides.",
    "tasks": "Number of tasks.",
    "overrides": "Changes to `task` for one index or a range (`3`, `0-9`), applied as a merge patch (RFC 7396).",
    "spread": "How many tasks of the job may share a machine, a rack or a power domain.",
    "spread.max_per_machine": "Largest number of tasks of the job per machine. 0: no limit.",
    "spread.max_per_rack": "Largest number of tasks of the job per rack. 0: no limit.",
    "spread.max_per_power_domain": "Largest number of tasks of the job per power domain. 0: no limit.",
    "update": "How a rolling update proceeds (§2.3).",
    "update.max_down": (
        "Largest number of tasks that an update may have down at once. 0: a tenth of the tasks, and at least one."
    ),
    "update.max_disruptions": "An update stops before it disrupts more tasks than this. 0: no limit.",
    "update.canary": (
        "Number of canary tasks, which have the lowest indexes. An update that restarts tasks changes them first, and "
        "the others when the canary tasks are promoted. 0: no canary tasks. The canary tasks do not test overrides "
        "that apply only to higher indexes."
    ),
    "update.promote": (
        "When the canary tasks are promoted. `healthy`: when all of them have been up for `healthy_s`. `manual`: when "
        "a person resumes the update."
    ),
    "update.healthy_s": (
        "Seconds for which all canary tasks must be up before the other tasks change, 0 to 86400. With `rollback`, an "
        "update is also done only when all tasks have been up for this time."
    ),
    "update.rollback": (
        "Whether the job returns to its last good version by itself if a task of the new version crashes or fails its "
        "health checks, or if the update exceeds its `deadline_s`."
    ),
    "update.deadline_s": (
        "Seconds that an update which restarts tasks may take, 1 to 31622400. Then it is rolled back, or it stops if "
        "`rollback` is false. Time in which it is paused does not count. By default, there is no limit."
    ),
    "alloc_set": (
        "Alloc set of the same tenant and cell in whose allocs the tasks run. The job then needs no quota of its own."
    ),
    "reclamation": (
        "Whether the tasks may be placed on reclaimed resources (§5.5). Tasks of priority `production` or higher are "
        "never placed there."
    ),
    "gang": "The scheduler places all pending tasks together, or none of them.",
    "disruption_budget": (
        "How much preemption, drains and re-packing may disrupt the job (§3.2, §4). A number or a share, such as `2` "
        "or `10%`, stands for a budget with this `max_down`. A change takes effect at once."
    ),
    "disruption_budget.max_down": (
        "Largest number of tasks that may be down at once, or a share of the tasks, from `1%` to `100%`. A share is "
        "rounded up, so it allows at least one task. 0: no limit for preemption, and `update.max_down` for drains."
    ),
    "disruption_budget.max_disruptions": (
        "Largest number of tasks that may be evicted within `window_s`. Failures of machines count, but are never held "
        "back. Updates and restarts of the job do not count. 0: no limit."
    ),
    "disruption_budget.window_s": (
        "Length of the window for `max_disruptions` in seconds, 60 to 604800 (7 days). The window ends now. By "
        "default, it is an hour."
    ),
    "max_running": (
        "Largest number of tasks that may have a machine at once. The others are pending until one of these ends. 0: "
        "no limit. Quota is charged for all tasks. A change takes effect without a restart; a lower number stops no "
        "task."
    ),
    "preemption_delay_s": (
        "Seconds within which tasks that this job preempts must end, 0 to 3600, even if their own `notice_s` is longer "
        "(the delay bound of §2.3). By default, they get the notice of their own job file."
    ),
    "saves_for_s": (
        "For a job in an alloc set. After an alloc has left a machine, the task runs there again with "
        "`BORG_ALLOC_ENDED=1` for at most this many seconds, until it exits with status 0. It can save logs."
    ),
    "start_after": (
        "No task starts before this time, for example `2026-12-24T02:00:00+01:00`, at most 366 days ahead. The job has "
        "its quota from the submission on. By default, tasks start as soon as they can. An update can change it until "
        "this time has come."
    ),
    "after": (
        "Jobs that this job waits for, at most 64, as `{NAME: succeeded}`. They are jobs of the same tenant and cell. "
        "Tasks start when each of them has reached its state: `succeeded` (all its tasks exited with status 0), "
        "`ended`, or `running` (all its live tasks are up). If one can no longer reach it, this job fails with the "
        "reason `dependency`. The submission looks up the names once. The job has its quota from the submission on. "
        "An update can only remove names."
    ),
    "deadline_s": (
        "Seconds from the submission until the job must have ended, 1 to 31622400. All tasks that have not ended by "
        "then are stopped, with the reason `deadline`, and have failed. By default, there is no deadline. A change "
        "takes effect at once, and also counts from the submission."
    ),
    "ttl_after_end_s": (
        "Seconds after its end for which PostgreSQL keeps the job, 172800 (2 days) to 31622400. Then it is only in the "
        "archive. By default, and at the latest, this happens after the `ended_jobs_keep_days` of the cell. A change "
        "takes effect at once."
    ),
    "api": (
        "What the tasks may do with REST in their own tenant and cell: `none`, `read`, or `submit`. The tenant's "
        "`task_api` is the upper limit."
    ),
    "names": "How the names of the job are published. A change takes effect at once, without a restart.",
    "names.ttl_s": "Seconds for which clients may cache an answer, 0 to 86400. 0: the value of `BORG_DNS_TTL`.",
    "names.leave_s": (
        "Seconds between the removal of a task from DNS answers and SIGTERM, 0 to 600. By default, one second more "
        "than the TTL for tasks with ports, and 0 for others."
    ),
    "autoscale": (
        "How the autoscaler changes the job while it is live: the limits of its tasks, or their number. Its changes "
        "are ordinary updates by `system:autoscaler`. By default, it changes nothing."
    ),
    "autoscale.vertical": "Changes of `task.limit.cpu` and `task.limit.ram` according to the use of the tasks.",
    "autoscale.vertical.mode": (
        "`off`, `recommend` (the default; the portal shows better limits and what they would save), or `auto` (the "
        "autoscaler sets them)."
    ),
    "autoscale.vertical.min": "Lowest limits that the autoscaler sets, such as `{cpu: 100m, ram: 64Mi}`.",
    "autoscale.vertical.max": "Highest limits that the autoscaler sets, such as `{cpu: 4, ram: 8Gi}`.",
    "autoscale.vertical.half_life_s": (
        "Seconds after which a measurement counts half, 60 to 2592000. Default: 86400 (a day)."
    ),
    "autoscale.vertical.margin": (
        "Share that is added to the measured use, 0 to 10. By default, 0.05 to 0.15, by the class of the job."
    ),
    "autoscale.vertical.every_s": "Shortest time between two changes in seconds, 60 to 2592000. Default: 3600.",
    "autoscale.vertical.history_s": (
        "Seconds of measured use before the first recommendation, 0 to 2592000. Default: 86400."
    ),
    "autoscale.horizontal": (
        "Changes of the number of tasks. If several of `cpu`, `metric` and `schedule` are given, the one that asks for "
        "most tasks decides."
    ),
    "autoscale.horizontal.mode": (
        "`off`, `recommend` (the portal only shows the number), or `auto` (the default; the autoscaler sets it)."
    ),
    "autoscale.horizontal.min": "Least number of tasks.",
    "autoscale.horizontal.max": "Largest number of tasks.",
    "autoscale.horizontal.cpu": (
        "CPU that a task should use, as a share of its limit, 0.01 to 10. With 0.6, a job whose tasks use 90 % of "
        "their limits gets 50 % more tasks."
    ),
    "autoscale.horizontal.metric": (
        "A metric that the tasks serve over HTTP in the text format of Prometheus, such as the length of a queue."
    ),
    "autoscale.horizontal.metric.name": (
        'Name of the metric, with or without labels: `queue_length`, or `jobs{queue="mail"}`. Without labels, all '
        "values of this name are added."
    ),
    "autoscale.horizontal.metric.target": "Amount of the metric per task.",
    "autoscale.horizontal.metric.port": "Name of the port that serves the metrics.",
    "autoscale.horizontal.metric.path": "Path of the metrics. Default: `/metrics`.",
    "autoscale.horizontal.metric.over": (
        "How the values of the tasks are combined: `sum` (the default), `mean` per task, or `max`, if all tasks report "
        "the same queue."
    ),
    "autoscale.horizontal.schedule": (
        "Numbers of tasks by time: a list of `at` (a cron line such as `0 8 * * 1-5`), `tasks`, and `time_zone` (UTC "
        "by default). From the times of `at` on, the job has at least `tasks` tasks, until the next time of the list."
    ),
    "autoscale.horizontal.tolerance": "Differences below this share of the tasks cause no change. Default: 0.1.",
    "autoscale.horizontal.window_s": "Seconds over which the use is averaged, 5 to 86400. Default: 60.",
    "autoscale.horizontal.up_s": (
        "Shortest time from a change until tasks are added, in seconds, 10 to 86400. Default: 60."
    ),
    "autoscale.horizontal.down_s": (
        "Seconds for which fewer tasks must have been enough before tasks are removed, 20 to 86400. Default: 300."
    ),
    "task.command": (
        "Program and arguments. `$(port.NAME)`, `$(index)`, `$(job)`, `$(cell)`, `$(name)` and `$(packages)` are "
        "replaced on the machine. Write `$$(…)` for the text `$(…)`."
    ),
    "task.env": "Environment variables. The same variables are replaced as in `command`.",
    "task.flags": "Appended to the command as `--NAME=VALUE`; `true` gives `--NAME`.",
    "task.limit": (
        "Largest amount of each resource that the task may use: `cpu` (`500m` is half a core), `ram`, `disk`, "
        "`disk_bandwidth` in bytes per second, `accelerators`, and further resources of the cell. This is what quota "
        "is charged for."
    ),
    "task.ports": "Names of TCP ports. The scheduler assigns a number to each.",
    "task.health": "Health check that the Borglet makes. An unhealthy task is restarted.",
    "task.health.http": "Path of an HTTP request. An answer with status 200 is healthy.",
    "task.health.tcp": "Whether to check that the task accepts a TCP connection, instead of an HTTP request.",
    "task.health.port": "Name of the port to check. By default, the only port.",
    "task.health.interval_s": "Seconds between two checks.",
    "task.health.timeout_s": "Seconds that a check may take.",
    "task.health.grace_s": "Seconds after the start in which failures do not count.",
    "task.health.failures": "Failures in a row after which the task is unhealthy.",
    "task.constraints": "Demands on machine attributes, hard or soft.",
    "task.notice_s": "Seconds between SIGTERM and SIGKILL, 0 to 3600.",
    "task.max_run_s": (
        "Longest time of a run in seconds, 1 to 31622400, counted from the start of the task. Then the task gets its "
        "notice, SIGTERM and SIGKILL, and has failed with the reason `time-limit`. It runs again only with "
        "`restart.on: always`. By default, there is no limit. A change takes effect without a restart."
    ),
    "task.restart": "What happens when the command exits.",
    "task.restart.on": "`failure`, `always` or `never`.",
    "task.restart.max_failures": (
        "Largest number of failures within `window_s`. More failures are a crash loop, which ends the task on its "
        "machine."
    ),
    "task.restart.window_s": "Seconds over which failures are counted.",
    "task.restart.backoff_s": "Seconds before the first restart. Each failure in a row doubles the delay.",
    "task.restart.backoff_max_s": "Longest delay in seconds.",
    "task.restart.max_moves": "How often a task in a crash loop is tried on another machine (§4).",
    "task.max_processes": "Largest number of processes and threads of the task.",
    "task.working_dir": "Working directory. By default, the task's own folder.",
    "task.user": "User that runs the task. The machine's `--task-users` must list it.",
    "task.packages": (
        "Packages to install before the start: `web` (which means `web@latest`), `web@v2`, or `web@sha256:…`. They "
        "are read-only below `$(packages)/<name>`."
    ),
    "task.secrets": (
        "Secrets of the tenant that the task gets: a list of `name`, `file` or `env`, and `version`. A file is in the "
        "folder `$BORG_SECRETS`, in memory. The job file never contains the value."
    ),
    "task.configs": (
        "Config files of the tenant that the task gets in the folder `$BORG_CONFIGS`: a list of `name`, `file` "
        "(default: the name), `version` (a number, or `latest`) and `on_change`. A new version of a `latest` file "
        "replaces the file while the task runs (`nothing`), also sends SIGHUP (`signal`), or restarts the tasks step "
        "by step (`restart`)."
    ),
    "task.plain_env": "Names of variables in `env` whose values look like secrets, but are not secret.",
    "task.locks": (
        "Locks of the tenant that the task may use, through the socket `$BORG_LOCKS`: names such as `shop/leader`, or "
        "of folders such as `shop`, which stand for all locks below them."
    ),
    "task.root": (
        "`host`: the task sees the machine's `/usr`. `packages`: its root is the content of its first package, which "
        "needs a machine with the attribute `runtime=oci`."
    ),
    "task.network": (
        "`host`, or `own` for an address of its own with all its ports, which needs `isolation.network=own`."
    ),
    "task.slack": "Whether the task may use idle resources beyond its limit (§6.2).",
    "task.slack.cpu": "Use idle CPU beyond the limit.",
    "task.slack.ram": "Use idle memory beyond the limit. Such a task is killed first when memory is short.",
    "task.whole_cores": (
        "Reserve whole cores for the task: no other latency-sensitive task runs on them. `limit.cpu` must be a whole"
        " number; here it counts cores of the machine, without the CPU factor of its platform."
    ),
    "task.weight": (
        "Share of the clients that find the job by name, 0 to 65535. 0: the task serves only if no other task does."
    ),
}

-- subject: Usage and limits
-- title: Limit, reservation and usage of the cell
-- about: Sums over all running tasks in each hour, as shares of the limits (Figure 11 of the Borg paper). Only SREs see rows.
-- chart: time, used_cpu_share
SELECT time, limit_cpus, reserved_cpus / limit_cpus AS reserved_cpu_share, used_cpus / limit_cpus AS used_cpu_share,
    reserved_memory / limit_memory AS reserved_memory_share, used_memory / limit_memory AS used_memory_share
FROM capacity_samples
WHERE time >= :since AND band = '' AND limit_cpus > 0 AND limit_memory > 0
ORDER BY time

"""The system calls that a task in a container may make, in groups. `bundle` uses these lists.

A call that is in no group fails with ENOSYS, as on an older kernel. Programs then use an older call: C libraries try
`clone3` and then `clone`. A call in `REFUSED` fails with EPERM. Names of calls that the machine's kernel does not know
are ignored.

Tasks may not create namespaces or mounts, trace processes or read their memory, set clocks, or manage swap, quota and
accounting. They may not use kernel modules, keys, BPF, performance counters, io_uring and userfaultfd, because these
parts of the kernel had many security holes.
"""

from __future__ import annotations


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


FILES = _names("""
    access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
    fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr
    flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr
    getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch fanotify_mark ioctl lchown
    lgetxattr link linkat listxattr listxattrat llistxattr lremovexattr lseek lsetxattr lstat mkdir mkdirat
    newfstatat open openat openat2 pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead readlink
    readlinkat readv removexattr removexattrat rename renameat renameat2 rmdir sendfile setxattr setxattrat
    splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask unlink unlinkat
    utime utimensat utimes vmsplice write writev mknod mknodat
""")  # mknod: no task has the capability for device nodes, but tasks may make fifos

MEMORY = _names("""
    brk madvise membarrier memfd_create memfd_secret mincore mlock mlock2 mlockall mmap mprotect mremap mseal
    msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect process_madvise process_mrelease
    remap_file_pages cachestat map_shadow_stack set_mempolicy get_mempolicy mbind set_mempolicy_home_node
""")

PROCESSES = _names("""
    arch_prctl capget capset execve execveat exit exit_group fork get_robust_list getegid geteuid getgid
    getgroups getpgid getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid
    getuid ioprio_get ioprio_set kill pidfd_open pidfd_send_signal prctl prlimit64 rseq sched_getaffinity
    sched_getattr sched_getparam sched_get_priority_max sched_get_priority_min sched_getscheduler
    sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield
    set_robust_list set_thread_area get_thread_area set_tid_address setfsgid setfsuid setgid setgroups setpgid
    setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid seccomp landlock_create_ruleset
    landlock_add_rule landlock_restrict_self tgkill tkill vfork wait4 waitid getcpu sysinfo times uname chroot
""")  # chroot needs a capability that no task has; landlock and seccomp only restrict the calling process

SIGNALS_AND_TIME = _names("""
    alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep pause restart_syscall
    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait
    rt_tgsigqueueinfo setitimer sigaltstack signalfd signalfd4 time timer_create timer_delete timer_getoverrun
    timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
""")

WAITING = _names("""
    epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old
    eventfd eventfd2 futex futex_requeue futex_wait futex_waitv futex_wake io_cancel io_destroy io_getevents
    io_pgetevents io_setup io_submit pipe pipe2 poll ppoll pselect6 select
""")

SOCKETS = _names("""
    accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg
    sendmsg sendto setsockopt shutdown socketpair
""")

SYSTEM_V = _names("""
    mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl msgget msgrcv msgsnd semctl
    semget semop semtimedop shmat shmctl shmdt shmget
""")  # inside the task's own IPC namespace

RANDOM = ("getrandom",)

ALLOWED: tuple[str, ...] = (*FILES, *MEMORY, *PROCESSES, *SIGNALS_AND_TIME, *WAITING, *SOCKETS, *SYSTEM_V, *RANDOM)

REFUSED: tuple[str, ...] = _names("""
    acct add_key adjtimex bpf clock_adjtime clock_settime delete_module fanotify_init finit_module fsconfig
    fsmount fsopen fspick get_kernel_syms init_module io_uring_enter io_uring_register io_uring_setup ioperm
    iopl kcmp kexec_file_load kexec_load keyctl lookup_dcookie mount mount_setattr move_mount move_pages
    migrate_pages name_to_handle_at nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd
    pivot_root process_vm_readv process_vm_writev ptrace query_module quotactl quotactl_fd reboot request_key
    setdomainname sethostname setns settimeofday stime swapoff swapon sysfs syslog umount umount2 unshare uselib
    userfaultfd ustat vhangup vm86 vm86old _sysctl
""")

# Allowed families of sockets, the first argument of `socket`: Unix, IPv4, IPv6, netlink (to read addresses and routes).
# Other families (AF_PACKET, AF_ALG, AF_VSOCK, …) are not allowed.
SOCKET_FAMILIES = (1, 2, 10, 16)

# CLONE_NEWNS, …CGROUP, …UTS, …IPC, …USER, …PID, …NET. A `clone` without these flags makes a process or a thread.
NEW_NAMESPACES = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000

# Allowed values of `personality`: Linux, Linux with 32 bits, Linux 2.6, both; 0xffffffff only reads the value.
PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF)

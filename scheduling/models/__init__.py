"""The database tables of sites, cells, machines, jobs and tasks. Other packages contain the rules and change the
rows.
"""

from scheduling.models.capacity import CapacitySample
from scheduling.models.cells import Brake, Cell, Cluster, JoinToken, Lease, Site, Standby
from scheduling.models.events import Event
from scheduling.models.history import ArchivedJob, ArchiveFile, ArchiveState, Erasure, SavedQuery
from scheduling.models.identities import IdentityKey, Secret, SecretGrant, SecretVersion, TokenTemplate
from scheduling.models.jobs import (
    CronJob,
    CronRun,
    Job,
    JobCondition,
    JobDependency,
    JobNoticeReader,
    JobSpec,
    JobTemplate,
    JobTemplateVersion,
    PendingVerdict,
    ServiceWeighting,
    StoppedJob,
    Update,
)
from scheduling.models.kept import KeptAlloc
from scheduling.models.machines import Drain, Machine, MaintenanceWindow, Pool, Repacking, RepackingStep
from scheduling.models.packages import ConfigDelivery, ConfigFile, ConfigVersion, Package, PackageTag
from scheduling.models.shells import LockFile, LockSession, ShellSession
from scheduling.models.statistics import JournalTally, NoticeCount, PromisedEviction, PromiseReader, StatisticsReader
from scheduling.models.tasks import CrashedPair, Departure, DisruptionCount, Task
from scheduling.models.usage import CellAutoscaling, InstanceUsage, JobAutoscaling, MeteringHour, ReservedInHour
from scheduling.models.workflows import AppliedWorkflow, Workflow, WorkflowNode, WorkflowReader

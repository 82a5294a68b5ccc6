"""The URLs of this app under /api/v1/."""

from __future__ import annotations

from django.urls import include, path

from scheduling.api import (
    brakes,
    causes,
    cell_deletion,
    cell_fits,
    cells,
    checkpoints,
    drains,
    job_actions,
    jobs,
    logs,
    packages,
    quarantine,
    recordings,
    restores,
    sql,
    statistics,
    studies,
    tasks,
    usage,
)

_job = [
    path("", jobs.JobView.as_view(), name="job"),
    path("plan/", jobs.PlanView.as_view(), name="job-plan"),
    path("update/", jobs.UpdateView.as_view(), name="job-update"),
    path("undo/", jobs.UndoView.as_view(), name="job-undo"),
    path("scale/", job_actions.ScaleView.as_view(), name="job-scale"),
    path("restart/", job_actions.RestartView.as_view(), name="job-restart"),
    path("retry/", job_actions.RetryView.as_view(), name="job-retry"),
    path("pause/", job_actions.PauseView.as_view(), name="job-pause"),
    path("resume/", job_actions.ResumeView.as_view(), name="job-resume"),
    path("kill/", jobs.KillView.as_view(), name="job-kill"),
    path("versions/", jobs.VersionsView.as_view(), name="job-versions"),
    path("events/", jobs.JobEventsView.as_view(), name="job-events"),
    path("why/", jobs.WhyView.as_view(), name="job-why"),
    path("tasks/", tasks.TasksView.as_view(), name="tasks"),
    path("tasks/<int:index>/", tasks.TaskView.as_view(), name="task"),
    path("tasks/<int:index>/usage/", usage.TaskUsageView.as_view(), name="task-usage"),
    path("tasks/<int:index>/logs/", logs.LogsView.as_view(), name="task-logs"),
]
_cell = [
    path("", cells.CellDetailView.as_view(), name="cell"),
    path("deletion/", cell_deletion.CellDeletionView.as_view(), name="cell-deletion"),
    path("settings/", cells.CellSettingsView.as_view(), name="cell-settings"),
    path("events/", cells.CellEventsView.as_view(), name="cell-events"),
    path("events/<str:place>/", causes.EventView.as_view(), name="cell-event"),
    path("statistics/", statistics.StatisticsView.as_view(), name="cell-statistics"),
    path("join-tokens/", cells.JoinTokensView.as_view(), name="join-tokens"),
    path("machines/", cells.MachinesView.as_view(), name="machines"),
    path("machines:drain", drains.MachinesDrainView.as_view(), name="machines-drain"),
    path("drains/", drains.DrainsView.as_view(), name="drains"),
    path("brakes/", brakes.BrakesView.as_view(), name="brakes"),
    path("brakes/<str:brake>:release", brakes.BrakeReleaseView.as_view(), name="brake-release"),
    path("brakes/<str:brake>:keep", brakes.BrakeKeepView.as_view(), name="brake-keep"),
    path("quarantine/", quarantine.QuarantineView.as_view(), name="quarantine"),
    path("machines/<str:hostname>:quarantine", quarantine.MachineQuarantineView.as_view(), name="machine-quarantine"),
    path("machines/<str:hostname>/", cells.MachineView.as_view(), name="machine"),
    path("machines/<str:hostname>:drain", cells.MachineDrainView.as_view(), name="machine-drain"),
    path("machines/<str:hostname>:undrain", cells.MachineUndrainView.as_view(), name="machine-undrain"),
    path("machines/<str:hostname>:grow", cells.MachineGrowView.as_view(), name="machine-grow"),
    path("machines/<str:hostname>:rotate", cells.MachineRotateView.as_view(), name="machine-rotate"),
    path("machines/<str:hostname>:revoke", cells.MachineRevokeView.as_view(), name="machine-revoke"),
    path("sql/", sql.SqlView.as_view(), name="sql"),
    path("sql/schema/", sql.SqlSchemaView.as_view(), name="sql-schema"),
    path("packages/", packages.PackagesView.as_view(), name="packages"),
    path("packages/<str:tenant>/<str:name>/<str:reference>/", packages.PackageView.as_view(), name="package"),
    path("checkpoints/", checkpoints.CheckpointsView.as_view(), name="checkpoints"),
    path(
        "checkpoints:restore-in-place",
        restores.CheckpointRestoreInPlaceView.as_view(),
        name="checkpoints-restore-in-place",
    ),
    path("checkpoints:restore", studies.CheckpointRestoreView.as_view(), name="checkpoints-restore"),
    path("checkpoints:moment", checkpoints.MomentCheckpointView.as_view(), name="checkpoint-moment"),
    path("checkpoints/<int:revision>/", checkpoints.CheckpointView.as_view(), name="checkpoint"),
    path("checkpoints/<int:revision>/content/", checkpoints.CheckpointContentView.as_view(), name="checkpoint-content"),
    path(
        "checkpoints/<int:revision>/redacted/", checkpoints.RedactedCheckpointView.as_view(), name="checkpoint-redacted"
    ),
    path("jobs/", jobs.JobsView.as_view(), name="jobs"),
    path("jobs:bulk", jobs.BulkView.as_view(), name="jobs-bulk"),
    path("jobs/<str:tenant>/<str:job>/", include(_job)),
]
urlpatterns = [
    path("cells/", cells.CellsView.as_view(), name="cells"),
    path("cells:fit", cell_fits.CellFitsView.as_view(), name="cells-fit"),
    path("cells:record", recordings.RecordingsView.as_view(), name="cells-record"),
    path("cells/<str:cell>/", include(_cell)),  # type: ignore[arg-type]
    path("studies/<str:cell>/", studies.StudyView.as_view(), name="study"),
]

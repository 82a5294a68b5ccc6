"""Serializers of explanations: why tasks are pending, why tasks run on their machines, and which events caused this."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.api.fields import NullableJobHealthField
from scheduling.api.suggested_limits import ConformingSerializer
from scheduling.api.task_serializers import EventSerializer, ExitSerializer
from scheduling.core.vocabulary.reasons import Basis, ChangeKind, ReasonCode
from scheduling.core.vocabulary.requirement import Relation

_CODES = [code.value for code in ReasonCode]

KINDS = [kind.value for kind in ChangeKind]


class RuledOutSerializer(serializers.Serializer[Any]):
    """A check that excludes machines. `wanted`: the requested amount. `largest`: the most that one machine has free.
    Both are in the unit of the resource.
    """

    code = serializers.ChoiceField(_CODES)
    subject = serializers.CharField(help_text="The resource or constraint.", allow_blank=True)
    machines = serializers.IntegerField(help_text="Machines that this check excludes and no earlier check does.")
    wanted = serializers.IntegerField()
    largest = serializers.IntegerField(help_text="The largest free amount on one of these machines.")
    until = serializers.FloatField(
        help_text="With code `maintenance`: when the first window ends, in seconds since the epoch. Otherwise 0."
    )


class HardConstraintSerializer(serializers.Serializer[Any]):
    attribute = serializers.CharField()
    relation = serializers.ChoiceField([relation.value for relation in Relation])
    value = serializers.CharField(allow_blank=True)


class ChangePartSerializer(serializers.Serializer[Any]):
    """A part of a suggested change to what a task requests. `subject`: a resource, an attribute or a limit on tasks per
    machine.
    """

    kind = serializers.ChoiceField(KINDS)
    subject = serializers.CharField(allow_blank=True)
    to = extend_schema_field({"type": ["string", "integer"]})(serializers.ReadOnlyField)(
        help_text="The value that would fit: a quantity or a text."
    )
    constraint = HardConstraintSerializer(allow_null=True, help_text="The constraint to replace or remove.")
    instead = HardConstraintSerializer(allow_null=True, help_text="The constraint to use instead, if any.")


class RequestChangeSerializer(ChangePartSerializer):
    """The smallest change of `subject` with which the task fits, and the number of machines on which the task then
    fits.
    """

    machines = serializers.IntegerField()
    parts = ChangePartSerializer(many=True, help_text="The parts of a combined change. All of them are needed.")


class LackSerializer(serializers.Serializer[Any]):
    resource = serializers.CharField()
    left = serializers.IntegerField(help_text="The free amount.")
    short = serializers.IntegerField(help_text="The missing amount.")


class NearestSerializer(serializers.Serializer[Any]):
    """The machine on which the least is missing for the task, and what is missing there."""

    machine = serializers.CharField(allow_null=True, help_text="Host name; null if the machine was removed.")
    lacks = LackSerializer(many=True, help_text="Resources that the machine lacks.")
    fails = HardConstraintSerializer(many=True, help_text="Constraints that the machine does not satisfy.")
    bounds = serializers.ListField(
        child=serializers.CharField(), help_text="Codes of the limits that this machine has reached."
    )


class AheadSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(allow_blank=True, help_text="Empty for tenants whose jobs you may not see.")
    jobs = serializers.IntegerField()
    tasks = serializers.IntegerField()


class PreemptionSerializer(serializers.Serializer[Any]):
    """For each reason, the number of machines on which the task would not fit even if other tasks were preempted."""

    not_enough = serializers.IntegerField(help_text="Machines too small even without tasks of lower priority.")
    held = serializers.IntegerField(help_text="Machines whose tasks of lower priority must not be evicted.")


class ReclamationSerializer(serializers.Serializer[Any]):
    machines = serializers.IntegerField(
        help_text="Machines that have too little for the limit of a prod task, but on which a non-prod task would fit."
    )


class ExpectedSerializer(serializers.Serializer[Any]):
    """A forecast for a class of equal pending tasks. The next task of the class is likely to start between `low_s` and
    `high_s` seconds after this explanation was made. Both numbers are null if there is no forecast.
    """

    basis = serializers.ChoiceField([basis.value for basis in Basis])
    low_s = serializers.FloatField(allow_null=True)
    high_s = serializers.FloatField(allow_null=True)
    ends = serializers.IntegerField(help_text="Tasks that ended in `window_s` on machines that could hold this task.")
    window_s = serializers.FloatField()
    room = serializers.FloatField(
        help_text="Number of tasks of this class that fit in the capacity that the ended tasks freed."
    )
    least = serializers.FloatField(help_text="Lower bound of tasks ahead: those of the same size.")
    ahead = serializers.FloatField(help_text="Upper bound of tasks ahead: all that compete for the same machines.")
    at = serializers.FloatField(
        allow_null=True,
        help_text="Expected start of the tasks (basis `booked`, `time-limits` or `run-times`), or of the gang for which"
        " the capacity is booked (`booked-for-a-gang`), or the end of the first maintenance window of a machine that"
        " could hold the task (`maintenance`), in seconds since the epoch.",
    )
    machines = serializers.IntegerField(
        help_text="Machines on which capacity is booked for a gang, or that go into maintenance."
    )
    fills_s = serializers.FloatField(
        allow_null=True,
        help_text="A task of this class can use the booked capacity now if its `restart.on` is `never`, it has no"
        " health check, and its `max_run_s`, `notice_s` and `leave_s` add up to at most this. Before a maintenance, a"
        " task with at most this sum would end in time.",
    )


class SentencesSerializer(serializers.Serializer[Any]):
    """The text that explains why tasks are pending."""

    summary = serializers.CharField()
    reasons = serializers.ListField(child=serializers.CharField())
    cures = serializers.ListField(child=serializers.CharField())
    notes = serializers.ListField(child=serializers.CharField())


class PendingClassSerializer(serializers.Serializer[Any]):
    """The reasons why a class of equal tasks is pending. `code`: the main reason. `revision`: the revision of the cell
    for which these reasons were found.
    """

    code = serializers.ChoiceField(_CODES, allow_blank=True)
    revision = serializers.IntegerField()
    tasks = serializers.IntegerField(help_text="Tasks of this job in the class.")
    machines = serializers.IntegerField(help_text="Machines of the cell.")
    ruled_out = RuledOutSerializer(many=True)
    nearest = NearestSerializer(allow_null=True)
    changes = RequestChangeSerializer(many=True)
    never = serializers.BooleanField(help_text="True if no machine could hold a task even if it were empty.")
    ahead = serializers.IntegerField(help_text="Pending tasks that the scheduler tries before this class.")
    ahead_of = AheadSerializer(many=True, help_text="The tenants with most of the tasks in `ahead`.")
    ahead_tenants = serializers.IntegerField(help_text="Number of tenants that own the tasks in `ahead`.")
    preemption = PreemptionSerializer()
    reclamation = ReclamationSerializer()
    expected = ExpectedSerializer(allow_null=True)
    shapes = ConformingSerializer(allow_null=True)
    told = SentencesSerializer()


class PartySerializer(serializers.Serializer[Any]):
    """A task that preempted another task, or that was preempted. If you may not see its job, only its priority is
    shown.
    """

    job = serializers.CharField(allow_null=True, help_text="tenant/job")
    index = serializers.IntegerField(allow_null=True)
    priority = serializers.IntegerField(allow_null=True)
    band = serializers.CharField(allow_blank=True)


class RunnerUpSerializer(serializers.Serializer[Any]):
    machine = serializers.CharField()
    score = serializers.FloatField()

    def to_representation(self, instance: tuple[str, float]) -> dict[str, Any]:
        return {"machine": instance[0], "score": instance[1]}


class PlacementSerializer(serializers.Serializer[Any]):
    """The record of a placement: the score of the chosen machine, the next best machines, and the preempted tasks."""

    machine = serializers.CharField()
    revision = serializers.IntegerField()
    time = serializers.DateTimeField()
    incarnation = serializers.IntegerField()
    score = serializers.DictField(child=serializers.FloatField(), help_text="Score by scorer.")
    total = serializers.FloatField()
    runners_up = RunnerUpSerializer(many=True)
    victims = PartySerializer(many=True)
    packages_bytes = serializers.IntegerField(help_text="Size of the packages that the task names; 0 if it names none.")
    present_bytes = serializers.IntegerField(help_text="The part of `packages_bytes` that the machine had already.")


class PreemptedSerializer(serializers.Serializer[Any]):
    """A preemption: the task lost its machine to a task of higher priority."""

    machine = serializers.CharField()
    revision = serializers.IntegerField()
    time = serializers.DateTimeField()
    by = PartySerializer(allow_null=True)


class CrashSerializer(serializers.Serializer[Any]):
    """A task that keeps crashing. `machine` is null while the task is pending."""

    index = serializers.IntegerField()
    machine = serializers.CharField(source="machine.hostname", default=None, allow_null=True)
    restarts = serializers.IntegerField(help_text="Restarts on this machine.")
    exit = ExitSerializer(allow_null=True, help_text="How the task's processes last ended.")
    since = serializers.DateTimeField(help_text="When the task last came up or went down.")


class WhySerializer(serializers.Serializer[Any]):
    """The explanation of the state of a job or task. `chain`: the event that caused the state, then the earlier events
    that caused this event, newest first.
    """

    state = serializers.CharField()
    health = NullableJobHealthField(allow_null=True, help_text="Health of the job; null in answers about one task.")
    crashes = CrashSerializer(many=True, help_text="Tasks that keep crashing, at most 20.")
    sentences = serializers.ListField(child=serializers.CharField())
    verdicts = PendingClassSerializer(many=True, help_text="Verdicts on pending tasks, one per class.")
    verdict_revision = serializers.IntegerField(allow_null=True)
    score = serializers.DictField(
        source="placement.score",
        default=None,
        child=serializers.FloatField(),
        allow_null=True,
        help_text="Score of the task's placement, per scorer.",
    )
    placement = PlacementSerializer(allow_null=True)
    preempted = PreemptedSerializer(allow_null=True, help_text="The task's most recent preemption.")
    chain = EventSerializer(many=True)

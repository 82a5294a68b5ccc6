"""How REST tells why: verdicts on pending tasks, receipts of placements, and the events behind them."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from scheduling.api.fields import NullableJobHealthField
from scheduling.api.shapes import ConformingSerializer
from scheduling.api.task_shapes import EventSerializer, ExitSerializer
from scheduling.core.vocabulary.reasons import Basis, ChangeKind, ReasonCode
from scheduling.core.vocabulary.requirement import Relation

_CODES = [code.value for code in ReasonCode]

KINDS = [kind.value for kind in ChangeKind]


class RuledOutSerializer(serializers.Serializer):
    """`machines` fell to `code` and to nothing before it. `wanted`, `largest`: in the units of the axis."""

    code = serializers.ChoiceField(_CODES)
    subject = serializers.CharField(help_text="Which resource or constraint.", allow_blank=True)
    machines = serializers.IntegerField()
    wanted = serializers.IntegerField()
    largest = serializers.IntegerField(help_text="The most that one of these machines has left.")


class HardConstraintSerializer(serializers.Serializer):
    attribute = serializers.CharField()
    relation = serializers.ChoiceField([relation.value for relation in Relation])
    value = serializers.CharField(allow_blank=True)


@extend_schema_field({"type": ["string", "integer"]})
class _ToField(serializers.Field):
    """A quantity or a text, as it is."""

    def to_representation(self, value: Any) -> Any:
        return value


class ChangePartSerializer(serializers.Serializer):
    """`subject`: a resource, an attribute, or a bound. `to`: what would do. `constraint`: the one in the way."""

    kind = serializers.ChoiceField(KINDS)
    subject = serializers.CharField(allow_blank=True)
    to = _ToField()
    constraint = HardConstraintSerializer(allow_null=True)
    instead = HardConstraintSerializer(
        allow_null=True, help_text="What to ask for in its place, if anything."
    )


class RequestChangeSerializer(ChangePartSerializer):
    """The smallest change of its kind that would make it fit, and on how many machines."""

    machines = serializers.IntegerField()
    parts = ChangePartSerializer(many=True, help_text="Of a combined change, to be made together.")


class LackSerializer(serializers.Serializer):
    resource = serializers.CharField()
    left = serializers.IntegerField()
    short = serializers.IntegerField()


class NearestSerializer(serializers.Serializer):
    """The machine that comes closest: what it lacks, which constraints it fails, which bounds are reached."""

    machine = serializers.CharField(allow_null=True, help_text="Its hostname; null where it has left.")
    lacks = LackSerializer(many=True)
    fails = HardConstraintSerializer(many=True)
    bounds = serializers.ListField(child=serializers.CharField(), help_text="Their codes.")


class AheadSerializer(serializers.Serializer):
    tenant = serializers.CharField(
        allow_blank=True, help_text="Empty for tenants whose jobs one may not see."
    )
    jobs = serializers.IntegerField()
    tasks = serializers.IntegerField()


class PreemptionSerializer(serializers.Serializer):
    """Machines where evicting lower priorities is not enough, and those that others hold for good."""

    not_enough = serializers.IntegerField()
    held = serializers.IntegerField()


class ReclamationSerializer(serializers.Serializer):
    machines = serializers.IntegerField(
        help_text="Where only limits are in the way: non-prod would have room."
    )


class ExpectedSerializer(serializers.Serializer):
    """When the next task of the class is likely to start, from the verdict on; null: no promise."""

    basis = serializers.ChoiceField([basis.value for basis in Basis])
    low_s = serializers.FloatField(allow_null=True)
    high_s = serializers.FloatField(allow_null=True)
    ends = serializers.IntegerField(help_text="Tasks seen to end on machines that could hold it.")
    window_s = serializers.FloatField()
    room = serializers.FloatField(help_text="How many tasks of the class those made room for.")
    least = serializers.FloatField(help_text="Tasks of its size that are tried before it, at least.")
    ahead = serializers.FloatField(help_text="And at most: of those that compete for the same machines.")


class ToldSerializer(serializers.Serializer):
    """The verdict in words."""

    summary = serializers.CharField()
    reasons = serializers.ListField(child=serializers.CharField())
    cures = serializers.ListField(child=serializers.CharField())
    notes = serializers.ListField(child=serializers.CharField())


class PendingClassSerializer(serializers.Serializer):
    """Why a class of tasks is pending. `code`: the leading reason. `revision`: of the cell it was examined at."""

    code = serializers.ChoiceField(_CODES, allow_blank=True)
    revision = serializers.IntegerField()
    tasks = serializers.IntegerField(help_text="Of this job.")
    machines = serializers.IntegerField(help_text="Of the cell.")
    ruled_out = RuledOutSerializer(many=True)
    nearest = NearestSerializer(allow_null=True)
    changes = RequestChangeSerializer(many=True)
    never = serializers.BooleanField(help_text="No machine could hold one even if it were empty.")
    ahead = serializers.IntegerField(help_text="Pending tasks that are tried first.")
    ahead_of = AheadSerializer(many=True, help_text="The tenants with most of them.")
    ahead_tenants = serializers.IntegerField()
    preemption = PreemptionSerializer()
    reclamation = ReclamationSerializer()
    expected = ExpectedSerializer(allow_null=True)
    shapes = ConformingSerializer(allow_null=True)
    told = ToldSerializer()


class PartySerializer(serializers.Serializer):
    """A task that took another's place, or lost its own. Of jobs one may not see only the priority is told."""

    job = serializers.CharField(allow_null=True, help_text="tenant/job")
    index = serializers.IntegerField(allow_null=True)
    priority = serializers.IntegerField(allow_null=True)
    band = serializers.CharField(allow_blank=True)


class RunnerUpSerializer(serializers.Serializer):
    machine = serializers.CharField()
    score = serializers.FloatField()

    def to_representation(self, instance: tuple[str, float]) -> dict[str, Any]:
        return {"machine": instance[0], "score": instance[1]}


class PlacementSerializer(serializers.Serializer):
    """The receipt of a placement: why this machine, what else was considered, and whom it preempted."""

    machine = serializers.CharField()
    revision = serializers.IntegerField()
    time = serializers.DateTimeField()
    incarnation = serializers.IntegerField()
    score = serializers.DictField(child=serializers.FloatField(), help_text="By part.")
    total = serializers.FloatField()
    runners_up = RunnerUpSerializer(many=True)
    victims = PartySerializer(many=True)
    packages_bytes = serializers.IntegerField(help_text="Of the packages that the task names; 0: none.")
    present_bytes = serializers.IntegerField(help_text="Of those, what the machine had already.")


class PreemptedSerializer(serializers.Serializer):
    """The task lost its machine to a more urgent one."""

    machine = serializers.CharField()
    revision = serializers.IntegerField()
    time = serializers.DateTimeField()
    by = PartySerializer(allow_null=True)


class CrashSerializer(serializers.Serializer):
    """A task that keeps crashing. `machine`: null while it waits for another one."""

    index = serializers.IntegerField()
    machine = serializers.CharField(source="machine.hostname", default=None, allow_null=True)
    restarts = serializers.IntegerField(help_text="On this machine.")
    exit = ExitSerializer(allow_null=True, help_text="How its processes last ended.")
    since = serializers.DateTimeField(help_text="Since when it is up, or is not.")


class WhySerializer(serializers.Serializer):
    """Why a job, or one of its tasks, is where it is. `chain`: the event and its causes, newest first."""

    state = serializers.CharField()
    health = NullableJobHealthField(
        allow_null=True, help_text="Of the job; null where a task was asked about."
    )
    crashes = CrashSerializer(many=True, help_text="Its tasks that keep crashing, at most 20.")
    sentences = serializers.ListField(child=serializers.CharField())
    verdicts = PendingClassSerializer(many=True, help_text="On tasks that are pending, one a class.")
    verdict_revision = serializers.IntegerField(allow_null=True)
    score = serializers.DictField(
        child=serializers.FloatField(), allow_null=True, help_text="By scorer, of the task's placement."
    )
    placement = PlacementSerializer(allow_null=True)
    preempted = PreemptedSerializer(allow_null=True, help_text="The last time that it was.")
    chain = EventSerializer(many=True)

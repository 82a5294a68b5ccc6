"""Partition the journal by cell, then by revision, so that the oldest events of each cell can be dropped.

A partition that contains only one cell's events is attached to the new table. Other events are copied.

To attach a partition, PostgreSQL reads all its rows while nobody can use the table, unless a constraint already says
that they fit. So the first two steps check the rows beside writers, and the third step only takes milliseconds.
"""

from django.db import migrations

# The name of the constraint contains the cell, and the first revision and the end of its range.
CLAIM = """
DO $$
DECLARE
    width CONSTANT bigint := 100000;
    child regclass;
    low bigint;
    high bigint;
    one bigint;
    name text;
BEGIN
    FOR child IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'scheduling_event'::regclass LOOP
        FOR name IN SELECT conname FROM pg_constraint WHERE conrelid = child AND conname LIKE 'one\\_cell\\_%' LOOP
            EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', child, name);  -- of a start that was interrupted
        END LOOP;
        EXECUTE format('SELECT min(cell_id), max(cell_id) FROM %s', child) INTO low, high;
        CONTINUE WHEN low IS NULL OR low <> high;
        one := low;
        EXECUTE format('SELECT min(revision), max(revision) FROM %s WHERE cell_id = %s', child, one) INTO low, high;
        low := low / width * width;
        high := (high / width + 2) * width;  -- writers may continue with the next range meanwhile
        EXECUTE format(
            'ALTER TABLE %s ADD CONSTRAINT %I CHECK (cell_id = %s AND revision >= %s AND revision < %s) NOT VALID',
            child, format('one_cell_%s_%s_%s', one, low, high), one, low, high
        );
    END LOOP;
END $$;
"""
CHECK = """
DO $$
DECLARE
    claim record;
BEGIN
    FOR claim IN SELECT conrelid::regclass AS child, conname FROM pg_constraint
        WHERE conrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'scheduling_event'::regclass)
        AND conname LIKE 'one\\_cell\\_%'
    LOOP
        EXECUTE format('ALTER TABLE %s VALIDATE CONSTRAINT %I', claim.child, claim.conname);
    END LOOP;
END $$;
"""
EXPAND = """
-- In the order of writers, who lock their cell before they write events. Otherwise both could wait for each other.
LOCK TABLE scheduling_cell IN SHARE ROW EXCLUSIVE MODE;
ALTER TABLE scheduling_event RENAME TO scheduling_event_before;
ALTER INDEX scheduling_event_pkey RENAME TO scheduling_event_before_pkey;
ALTER INDEX event_by_job RENAME TO event_by_job_before;
ALTER INDEX event_by_machine RENAME TO event_by_machine_before;
ALTER SEQUENCE scheduling_event_id_seq RENAME TO scheduling_event_before_id_seq;
CREATE TABLE scheduling_event (
    LIKE scheduling_event_before INCLUDING IDENTITY,
    PRIMARY KEY (cell_id, revision, seq)
) PARTITION BY RANGE (cell_id, revision);
CREATE INDEX event_by_job ON scheduling_event (job_id, revision) WHERE job_id IS NOT NULL;
CREATE INDEX event_by_machine ON scheduling_event (machine_id, revision) WHERE machine_id IS NOT NULL;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON scheduling_event
    FOR EACH ROW EXECUTE FUNCTION scheduling_event_is_append_only();

-- The partitions of the journal: `first` is the first revision of the cell in it, `until` the first one after it.
CREATE VIEW scheduling_event_partition AS
    SELECT name, (bounds)[1]::bigint AS cell_id, (bounds)[2]::bigint AS first, (bounds)[4]::bigint AS until, detaching
    FROM (
        SELECT child.relname::text AS name, inhdetachpending AS detaching, regexp_match(
            pg_get_expr(child.relpartbound, child.oid),
            'FROM \\(''(\\d+)'', ''(\\d+)''\\) TO \\(''(\\d+)'', ''(\\d+)''\\)'
        ) AS bounds
        FROM pg_inherits JOIN pg_class AS child ON child.oid = inhrelid
        WHERE inhparent = 'scheduling_event'::regclass
    ) AS partitions;

-- Create the partition for a revision of a cell if it is missing, and return whether it was missing. Writers are not
-- blocked: ATTACH PARTITION conflicts only with other changes of the table's definition.
CREATE FUNCTION scheduling_event_partition_make(cell bigint, revision bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    width CONSTANT bigint := 100000;
    low CONSTANT bigint := revision / width * width;
    name CONSTANT text := format('scheduling_event_%s_%s', cell, low);
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('scheduling_event_partition'), cell::integer);
    PERFORM FROM scheduling_event_partition AS p
        WHERE p.cell_id = cell AND p.first <= scheduling_event_partition_make.revision
        AND p.until > scheduling_event_partition_make.revision;
    IF FOUND THEN
        RETURN false;
    END IF;
    EXECUTE format('CREATE TABLE %I (LIKE scheduling_event INCLUDING INDEXES)', name);
    EXECUTE format(
        'ALTER TABLE scheduling_event ATTACH PARTITION %I FOR VALUES FROM (%s, %s) TO (%s, %s)',
        name, cell, low, cell, low + width
    );
    RETURN true;
END $$;

CREATE FUNCTION scheduling_cell_has_a_journal() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM scheduling_event_partition_make(NEW.id, NEW.revision);
    RETURN NULL;
END $$;
CREATE TRIGGER has_a_journal AFTER INSERT ON scheduling_cell
    FOR EACH ROW EXECUTE FUNCTION scheduling_cell_has_a_journal();

DO $$
DECLARE
    width CONSTANT bigint := 100000;
    child regclass;
    low bigint;
    high bigint;
    one bigint;
    claim text;
BEGIN
    FOR child IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'scheduling_event_before'::regclass LOOP
        SELECT conname INTO claim FROM pg_constraint WHERE conrelid = child AND conname LIKE 'one\\_cell\\_%';
        IF claim IS NOT NULL THEN
            one := split_part(claim, '_', 3);
            low := split_part(claim, '_', 4);
            high := split_part(claim, '_', 5);
            EXECUTE format('ALTER TABLE scheduling_event_before DETACH PARTITION %s', child);
            EXECUTE format('ALTER TABLE %s RENAME TO %I', child, format('scheduling_event_%s_%s', one, low));
            EXECUTE format(
                'ALTER TABLE scheduling_event ATTACH PARTITION %I FOR VALUES FROM (%s, %s) TO (%s, %s)',
                format('scheduling_event_%s_%s', one, low), one, low, one, high
            );
            EXECUTE format('ALTER TABLE %I DROP CONSTRAINT %I', format('scheduling_event_%s_%s', one, low), claim);
        ELSE
            FOR one, low IN EXECUTE format('SELECT DISTINCT cell_id, revision / %s FROM %s', width, child) LOOP
                PERFORM scheduling_event_partition_make(one, low * width);
            END LOOP;
            EXECUTE format('INSERT INTO scheduling_event SELECT * FROM %s', child);
        END IF;
    END LOOP;
    PERFORM scheduling_event_partition_make(id, revision + ahead * width)
        FROM scheduling_cell, generate_series(0, 1) AS ahead;
    PERFORM setval(
        pg_get_serial_sequence('scheduling_event', 'id'), (SELECT last_value FROM scheduling_event_before_id_seq)
    );
END $$;
DROP TABLE scheduling_event_before;
"""

BACK = """
DROP TRIGGER has_a_journal ON scheduling_cell;
DROP FUNCTION scheduling_cell_has_a_journal();
DROP FUNCTION scheduling_event_partition_make(bigint, bigint);
DROP VIEW scheduling_event_partition;
ALTER TABLE scheduling_event RENAME TO scheduling_event_after;
ALTER INDEX scheduling_event_pkey RENAME TO scheduling_event_after_pkey;
ALTER INDEX event_by_job RENAME TO event_by_job_after;
ALTER INDEX event_by_machine RENAME TO event_by_machine_after;
ALTER SEQUENCE scheduling_event_id_seq RENAME TO scheduling_event_after_id_seq;
CREATE TABLE scheduling_event (
    LIKE scheduling_event_after INCLUDING IDENTITY,
    PRIMARY KEY (cell_id, revision, seq)
) PARTITION BY RANGE (revision);
CREATE INDEX event_by_job ON scheduling_event (job_id, revision) WHERE job_id IS NOT NULL;
CREATE INDEX event_by_machine ON scheduling_event (machine_id, revision) WHERE machine_id IS NOT NULL;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON scheduling_event
    FOR EACH ROW EXECUTE FUNCTION scheduling_event_is_append_only();
DO $$
DECLARE
    part bigint;
BEGIN
    FOR part IN
        SELECT revision / 1000000 FROM scheduling_event_after
        UNION SELECT revision / 1000000 + ahead FROM scheduling_cell, generate_series(0, 1) AS ahead
        UNION SELECT generate_series(0, 1)
    LOOP
        EXECUTE format(
            'CREATE TABLE %I PARTITION OF scheduling_event FOR VALUES FROM (%s) TO (%s)',
            'scheduling_event_' || lpad(part::text, 6, '0'), part * 1000000, (part + 1) * 1000000
        );
    END LOOP;
    INSERT INTO scheduling_event SELECT * FROM scheduling_event_after;
    PERFORM setval(
        pg_get_serial_sequence('scheduling_event', 'id'), (SELECT last_value FROM scheduling_event_after_id_seq)
    );
END $$;
DROP TABLE scheduling_event_after;
"""


class Migration(migrations.Migration):
    atomic = False  # each of the three steps is a transaction
    dependencies = [("scheduling", "0031_machines_are_counted_from_an_index")]

    operations = [
        migrations.RunSQL(CLAIM, migrations.RunSQL.noop),
        migrations.RunSQL(CHECK, migrations.RunSQL.noop),
        migrations.RunSQL(EXPAND, BACK),
    ]

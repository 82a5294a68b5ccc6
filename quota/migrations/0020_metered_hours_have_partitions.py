"""Metered hours have one partition per month, so that PostgreSQL returns the disk space of an archived month at once.

The old table becomes the partition of all hours before the month after next. It is not copied. The archiver deletes its
rows as before, and drops it when it is empty. Processes of the previous version work with both tables.

To attach a table, PostgreSQL reads all its rows while nobody can use it, unless a constraint already says that they
fit. So the first two steps check the rows beside readers and writers, and the third step takes milliseconds.
"""

from django.db import migrations

# The name of the constraint contains the month. A start that was interrupted may have left a constraint.
CLAIM = r"""
DO $$
DECLARE
    claim text;
    until date;
BEGIN
    IF (SELECT relkind FROM pg_class WHERE oid = 'quota_meteredhour'::regclass) = 'p' THEN
        RETURN;
    END IF;
    SELECT date_trunc('month', greatest(now(), max(hour)) AT TIME ZONE 'UTC') + interval '2 months' INTO until
        FROM quota_meteredhour;
    FOR claim IN SELECT conname FROM pg_constraint
        WHERE conrelid = 'quota_meteredhour'::regclass AND conname LIKE 'hours\_until\_%'
    LOOP
        EXECUTE format('ALTER TABLE quota_meteredhour DROP CONSTRAINT %I', claim);
    END LOOP;
    EXECUTE format(
        'ALTER TABLE quota_meteredhour ADD CONSTRAINT %I CHECK (hour < %L) NOT VALID',
        'hours_until_' || to_char(until, 'YYYYMM'), until || ' 00:00:00+00'
    );
END $$;
"""
CHECK = r"""
DO $$
DECLARE
    claim text;
BEGIN
    FOR claim IN SELECT conname FROM pg_constraint
        WHERE conrelid = 'quota_meteredhour'::regclass AND conname LIKE 'hours\_until\_%'
    LOOP
        EXECUTE format('ALTER TABLE quota_meteredhour VALIDATE CONSTRAINT %I', claim);
    END LOOP;
END $$;
"""
_INDEXES = """
    ALTER TABLE quota_meteredhour
        ADD CONSTRAINT metered_once_per_hour UNIQUE NULLS NOT DISTINCT (cell, hour, job_uid, band_id);
    CREATE INDEX metered_by_tenant ON quota_meteredhour (tenant_id, hour);
    CREATE INDEX metered_by_posting ON quota_meteredhour (posting_id) WHERE posting_id IS NOT NULL;
    CREATE INDEX metered_to_charge ON quota_meteredhour (tenant_id, cell, hour) WHERE posting_id IS NULL AND price > 0;
    ALTER TABLE quota_meteredhour
        ADD CONSTRAINT quota_meteredhour_band_id_f1c6e797_fk_quota_priorityband_id
            FOREIGN KEY (band_id) REFERENCES quota_priorityband (id) DEFERRABLE INITIALLY DEFERRED,
        ADD CONSTRAINT quota_meteredhour_posting_id_124e31a1_fk_quota_posting_id
            FOREIGN KEY (posting_id) REFERENCES quota_posting (id) DEFERRABLE INITIALLY DEFERRED,
        ADD CONSTRAINT quota_meteredhour_tenant_id_84d26c28_fk_quota_tenant_id
            FOREIGN KEY (tenant_id) REFERENCES quota_tenant (id) DEFERRABLE INITIALLY DEFERRED;
"""
# A transaction that writes postings locks accounts first. In another order, both could wait for each other. Metering
# locks tenants last, so this step can meet it. A long report can also hold a table. Others wait behind this step, so it
# waits for half a second at most, gives up its locks, and tries again. PostgreSQL looks for deadlocks after a second.
_LOCKS = """
    SET LOCAL lock_timeout = '500ms';
    FOR attempt IN 1..300 LOOP
        BEGIN
            LOCK TABLE quota_account IN EXCLUSIVE MODE;
            LOCK TABLE quota_tenant, quota_priorityband, quota_posting, quota_meteredhour IN ACCESS EXCLUSIVE MODE;
            EXIT;
        EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
            IF attempt = 300 THEN
                RAISE 'quota_meteredhour is in use for minutes: end long reports and backups, and run migrate again';
            END IF;
            PERFORM pg_sleep(0.5);
        END;
    END LOOP;
"""
SWAP = rf"""
DO $$
DECLARE
    claim text;
    until text;
    old text;
    part text;
    month date;
    used boolean;
    next bigint;
BEGIN
    IF (SELECT relkind FROM pg_class WHERE oid = 'quota_meteredhour'::regclass) = 'p' THEN
        RETURN;
    END IF;
    {_LOCKS}
    SELECT conname INTO STRICT claim FROM pg_constraint
        WHERE conrelid = 'quota_meteredhour'::regclass AND conname LIKE 'hours\_until\_%';
    until := split_part(claim, '_', 3);
    old := 'quota_meteredhour_until_' || until;
    next := nextval(pg_get_serial_sequence('quota_meteredhour', 'id'));
    EXECUTE format('ALTER TABLE quota_meteredhour RENAME TO %I', old);
    EXECUTE format('ALTER TABLE %I ALTER id DROP IDENTITY', old);
    EXECUTE format('ALTER INDEX quota_meteredhour_pkey RENAME TO %I', old || '_pkey');
    EXECUTE format('ALTER INDEX metered_once_per_hour RENAME TO %I', old || '_once_per_hour');
    EXECUTE format('ALTER INDEX metered_by_tenant RENAME TO %I', old || '_by_tenant');
    EXECUTE format('ALTER INDEX metered_by_posting RENAME TO %I', old || '_by_posting');
    EXECUTE format('ALTER INDEX metered_to_charge RENAME TO %I', old || '_to_charge');
    -- Each partition has its own primary key: that of the table would have to contain the hour.
    EXECUTE format('CREATE TABLE quota_meteredhour (LIKE %I) PARTITION BY RANGE (hour)', old);
    EXECUTE format(
        'ALTER TABLE quota_meteredhour ALTER id ADD GENERATED BY DEFAULT AS IDENTITY (START WITH %s)', next
    );
    {_INDEXES}
    EXECUTE format('SELECT EXISTS (SELECT FROM %I)', old) INTO used;
    IF used THEN
        EXECUTE format(
            'ALTER TABLE quota_meteredhour ATTACH PARTITION %I FOR VALUES FROM (MINVALUE) TO (%L)',
            old, to_date(until, 'YYYYMM') || ' 00:00:00+00'
        );
        EXECUTE format('ALTER TABLE %I DROP CONSTRAINT %I', old, claim);
    ELSE
        EXECUTE format('DROP TABLE %I', old);
        -- For processes of the previous version, which create no partitions.
        FOR month IN SELECT generate_series(to_date(until, 'YYYYMM') - interval '3 months',
            to_date(until, 'YYYYMM'), interval '1 month')
        LOOP
            part := 'quota_meteredhour_' || to_char(month, 'YYYYMM');
            EXECUTE format('CREATE TABLE %I (LIKE quota_meteredhour INCLUDING DEFAULTS, PRIMARY KEY (id))', part);
            EXECUTE format(
                'ALTER TABLE quota_meteredhour ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                part, month || ' 00:00:00+00', (month + interval '1 month')::date || ' 00:00:00+00'
            );
        END LOOP;
    END IF;
END $$;
"""
# Copies all rows, while nobody can use the table.
BACK = rf"""
DO $$
DECLARE
    next bigint;
BEGIN
    {_LOCKS}
    next := nextval(pg_get_serial_sequence('quota_meteredhour', 'id'));
    ALTER TABLE quota_meteredhour RENAME TO quota_meteredhour_after;
    ALTER TABLE quota_meteredhour_after ALTER id DROP IDENTITY;
    ALTER INDEX metered_once_per_hour RENAME TO metered_once_per_hour_after;
    ALTER INDEX metered_by_tenant RENAME TO metered_by_tenant_after;
    ALTER INDEX metered_by_posting RENAME TO metered_by_posting_after;
    ALTER INDEX metered_to_charge RENAME TO metered_to_charge_after;
    CREATE TABLE quota_meteredhour (LIKE quota_meteredhour_after, PRIMARY KEY (id));
    EXECUTE format(
        'ALTER TABLE quota_meteredhour ALTER id ADD GENERATED BY DEFAULT AS IDENTITY (START WITH %s)', next
    );
    INSERT INTO quota_meteredhour SELECT * FROM quota_meteredhour_after;
    DROP TABLE quota_meteredhour_after;
    {_INDEXES}
END $$;
"""


class Migration(migrations.Migration):
    atomic = False  # each of the three steps is a transaction
    dependencies = [("quota", "0019_metered_hours_in_order_of_time")]

    operations = [
        migrations.RunSQL(CLAIM, migrations.RunSQL.noop),
        migrations.RunSQL(CHECK, migrations.RunSQL.noop),
        migrations.RunSQL(SWAP, BACK),
    ]

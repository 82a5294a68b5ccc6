"""Postings balance, are never changed, and never land in a month that is closed."""

from django.db import migrations

ADD = """
CREATE FUNCTION quota_never_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is append-only: post the opposite instead', TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON quota_posting
    FOR EACH ROW EXECUTE FUNCTION quota_never_changed();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON quota_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION quota_never_changed();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON quota_invoice
    FOR EACH ROW EXECUTE FUNCTION quota_never_changed();

CREATE FUNCTION quota_posting_balances() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    posting bigint;
    entries bigint;
    total numeric;
BEGIN
    posting := to_jsonb(NEW) ->> CASE TG_TABLE_NAME WHEN 'quota_posting' THEN 'id' ELSE 'posting_id' END;
    SELECT count(*), COALESCE(sum(amount), 0) INTO entries, total
        FROM quota_ledgerentry WHERE posting_id = posting;
    IF entries < 2 OR total <> 0 THEN
        RAISE EXCEPTION 'posting % does not balance: % entries, together %', posting, entries, total
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER balances AFTER INSERT ON quota_posting
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION quota_posting_balances();
CREATE CONSTRAINT TRIGGER balances AFTER INSERT ON quota_ledgerentry
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION quota_posting_balances();

CREATE FUNCTION quota_month_is_open() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    closed record;
BEGIN
    IF TG_TABLE_NAME = 'quota_posting' THEN
        SELECT i.number, i.ends_at INTO closed FROM quota_invoice i
            WHERE i.tenant_id = NEW.tenant_id AND i.ends_at > NEW.occurred_at LIMIT 1;
    ELSE
        SELECT i.number, i.ends_at INTO closed FROM quota_invoice i JOIN quota_posting p ON p.tenant_id = i.tenant_id
            WHERE p.id = NEW.posting_id AND i.ends_at > p.occurred_at LIMIT 1;
    END IF;
    IF FOUND THEN
        RAISE EXCEPTION 'invoice % has closed all before %', closed.number, closed.ends_at
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER month_is_open BEFORE INSERT ON quota_posting
    FOR EACH ROW EXECUTE FUNCTION quota_month_is_open();
CREATE TRIGGER month_is_open BEFORE INSERT ON quota_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION quota_month_is_open();
"""
DROP = """
DROP TRIGGER month_is_open ON quota_ledgerentry;
DROP TRIGGER month_is_open ON quota_posting;
DROP FUNCTION quota_month_is_open();
DROP TRIGGER balances ON quota_ledgerentry;
DROP TRIGGER balances ON quota_posting;
DROP FUNCTION quota_posting_balances();
DROP TRIGGER append_only ON quota_invoice;
DROP TRIGGER append_only ON quota_ledgerentry;
DROP TRIGGER append_only ON quota_posting;
DROP FUNCTION quota_never_changed();
"""


class Migration(migrations.Migration):
    dependencies = [("quota", "0004_the_quota_market")]

    operations = [migrations.RunSQL(ADD, DROP)]

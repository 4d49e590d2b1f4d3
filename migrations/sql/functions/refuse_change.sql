-- Stands before every change and removal of what is append-only. The one change let through is an erasure: content and
-- salt go, the pos of the redaction comes, and nothing else differs.
CREATE FUNCTION compaction_store.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_old jsonb;
    v_new jsonb;
    v_erasable text[] := ARRAY['payload', 'body', 'meta', 'salt', 'redacted_pos'];
BEGIN
    IF TG_OP = 'UPDATE' AND TG_TABLE_NAME IN ('messages', 'compactions') THEN
        IF OLD.redacted_pos IS NULL AND NEW.redacted_pos IS NOT NULL AND NEW.salt IS NULL THEN
            -- The content is set aside first: jsonb cannot hold all of it.
            IF TG_TABLE_NAME = 'messages' THEN
                IF NEW.payload IS NULL AND NEW.meta IS NULL THEN
                    OLD.payload := NULL;
                    OLD.meta := NULL;
                    v_old := to_jsonb(OLD) - v_erasable;
                    v_new := to_jsonb(NEW) - v_erasable;
                END IF;
            ELSIF NEW.body IS NULL THEN
                OLD.body := NULL;
                v_old := to_jsonb(OLD) - v_erasable;
                v_new := to_jsonb(NEW) - v_erasable;
            END IF;
            IF v_old = v_new THEN
                RETURN NEW;
            END IF;
        END IF;
    ELSIF TG_OP = 'UPDATE' AND TG_TABLE_NAME = 'threads' THEN
        IF (OLD.thread_uid, OLD.tenant, OLD.thread_id, OLD.created_at)
            = (NEW.thread_uid, NEW.tenant, NEW.thread_id, NEW.created_at)
        THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '% of compaction_store.% is refused: it is append-only', TG_OP, TG_TABLE_NAME
        USING ERRCODE = 'CS011';
END
$$;

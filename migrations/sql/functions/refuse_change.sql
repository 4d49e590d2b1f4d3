-- Trigger function that refuses to change or delete rows of append-only tables. It allows four changes: an erasure,
-- which sets content and salt to NULL and redacted_pos to a pos and changes nothing else; feed_xid set to 0, after a
-- move to a server that numbers its own transactions; new metadata for a thread; and the renaming of an erased thread to its stub, which also removes its salt and its metadata. Rows are compared by
-- their bytes, with *=, because json has no equality.
CREATE FUNCTION compaction_store.refuse_change() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    -- On Citus, the name of a shard is the name of the table with a number.
    v_table text := regexp_replace(TG_TABLE_NAME, '_[0-9]+$', '');
BEGIN
    IF TG_OP = 'UPDATE' AND v_table IN ('messages', 'compactions') THEN
        IF v_table = 'compactions' THEN
            -- Generated columns are not computed yet in NEW, so compare without them.
            OLD.span_node := NULL;
        END IF;
        IF OLD.redacted_pos IS NULL AND NEW.redacted_pos IS NOT NULL THEN
            OLD.redacted_pos := NEW.redacted_pos;
            OLD.salt := NULL;
            IF v_table = 'messages' THEN
                OLD.payload := NULL;
                OLD.meta := NULL;
            ELSE
                OLD.body := NULL;
            END IF;
            IF OLD *= NEW THEN
                RETURN NEW;
            END IF;
        END IF;
    ELSIF TG_OP = 'UPDATE' AND v_table = 'threads' THEN
        OLD.metadata := NEW.metadata;
        IF OLD *= NEW THEN
            RETURN NEW;
        END IF;
        OLD.thread_id := 'erased:' || OLD.thread_uid;
        OLD.salt := NULL;
        OLD.metadata := '{}';
        IF OLD *= NEW THEN
            RETURN NEW;
        END IF;
    END IF;
    IF TG_OP = 'UPDATE' AND v_table IN ('messages', 'compactions', 'events') THEN
        OLD.feed_xid := 0;
        IF OLD *= NEW THEN
            RETURN NEW;
        END IF;
    END IF;
    RAISE EXCEPTION '% of compaction_store.% is refused: it is append-only', TG_OP, v_table
        USING ERRCODE = 'CS011';
END
$$;

-- Reads the body of a fork event. It begins with the new thread, the last copied pos and seq, and the head of the new
-- thread when it was made; rest is what follows. All are NULL if the body does not begin like this. The function uses
-- no JSON parser, because a parser would fail at \u0000.
CREATE FUNCTION compaction_store.fork_of(
    p_body text, OUT child uuid, OUT at_pos bigint, OUT at_seq bigint, OUT head bytea, OUT rest text
)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_parts text[] := regexp_match(
        p_body,
        '^[{]"child":"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})","pos":([0-9]{1,18}),"seq":([0-9]{1,18}),'
        '"head":"([0-9a-f]{64})"(.*)$'
    );
BEGIN
    child := v_parts[1]::uuid;
    at_pos := v_parts[2]::bigint;
    at_seq := v_parts[3]::bigint;
    head := decode(v_parts[4], 'hex');
    rest := v_parts[5];
END
$$;

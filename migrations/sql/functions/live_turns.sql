-- Returns the waiting turns whose places have not expired, and the place of a given turn: its place among them or, if
-- it has none, the place after the last one. The given turn keeps an expired place, because no other turn has passed it
-- yet.
CREATE FUNCTION compaction_store.live_turns(
    p_waiting uuid[], p_until timestamp with time zone[], p_turn_id uuid,
    OUT turns uuid[], OUT until timestamp with time zone[], OUT place integer
)
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    SELECT coalesce(array_agg(w.turn_id ORDER BY w.i), '{}'), coalesce(array_agg(w.until ORDER BY w.i), '{}')
    INTO turns, until
    FROM unnest(p_waiting, p_until) WITH ORDINALITY AS w (turn_id, until, i)
    WHERE w.until > v_now OR w.turn_id = p_turn_id;
    place := coalesce(array_position(turns, p_turn_id), cardinality(turns) + 1);
END
$$;

import type { Work } from '../api/client';

/** Tells whether a person has snoozed this work. */
export const isSnoozed = (work: Work, now: number): boolean =>
  !!work.snoozed_until && Date.parse(work.snoozed_until) > now;

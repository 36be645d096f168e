import { DropdownMenu } from 'radix-ui';
import { useEffect } from 'react';
import type { Work } from '../api/client';
import { actions, type Marks, useAction } from '../api/queries';
import { isSnoozed } from '../model/needs';
import { Button, Problem } from '../parts/controls';
import { Icon } from '../parts/icon';
import { Moment, useNow } from '../parts/text';
import { useHeld } from './act';

export const useMark = (work: Work) => useAction((marks: Partial<Marks>) => actions.mark(work.id, marks));

const HOUR_MS = 3_600_000;

/** The next morning, so many days from now. */
function morning(days: number): Date {
  const at = new Date();
  at.setDate(at.getDate() + days);
  at.setHours(9, 0, 0, 0);
  return at;
}

const TIMES: [string, () => Date][] = [
  ['In an hour', () => new Date(Date.now() + HOUR_MS)],
  ['Tomorrow morning', () => morning(1)],
  ['In a week', () => morning(7)],
];

/** Entries of a menu that put work off. */
function Times({ work }: { work: Work }) {
  const mark = useMark(work);
  const { disabled } = useHeld();
  if (isSnoozed(work, Date.now())) {
    return (
      <DropdownMenu.Item disabled={disabled} onSelect={() => mark.mutate({ snoozed_until: null })}>
        End snooze
      </DropdownMenu.Item>
    );
  }
  return TIMES.map(([words, at]) => (
    <DropdownMenu.Item
      key={words}
      disabled={disabled}
      onSelect={() => mark.mutate({ snoozed_until: at().toISOString() })}
    >
      {words}
    </DropdownMenu.Item>
  ));
}

/** Puts one thing that needs the person off. */
export const Later = ({ work }: { work: Work }) => (
  <DropdownMenu.Root modal={false}>
    <DropdownMenu.Trigger
      className="btn quiet sm icon"
      aria-label={`Snooze: ${work.title}`}
      title="Later"
      {...useHeld()}
    >
      <Icon name="schedules" />
    </DropdownMenu.Trigger>
    <DropdownMenu.Portal>
      <DropdownMenu.Content className="menu" align="end" sideOffset={4}>
        <Times work={work} />
      </DropdownMenu.Content>
    </DropdownMenu.Portal>
  </DropdownMenu.Root>
);

/** Entries of a menu that flag work and put it off. */
export function MarkItems({ work }: { work: Work }) {
  const mark = useMark(work);
  return (
    <>
      <DropdownMenu.Item
        disabled={useHeld().disabled}
        onSelect={() => mark.mutate({ flagged: !work.flagged_at })}
      >
        {work.flagged_at ? 'Remove flag' : 'Flag for attention'}
      </DropdownMenu.Item>
      <DropdownMenu.Label className="faint small">Later</DropdownMenu.Label>
      <Times work={work} />
    </>
  );
}

/** The marks on work, each with a button to remove it if possible. */
export function Marked({ work }: { work: Work }) {
  const mark = useMark(work);
  const snoozed = isSnoozed(work, useNow());
  if (!work.flagged_at && !snoozed && !work.archived_at) return null;
  return (
    <div className="marked">
      {work.flagged_at && (
        <p>
          <b>Flagged</b> <Moment at={work.flagged_at} />
          <Button small look="quiet" onClick={() => mark.mutate({ flagged: false })}>
            Remove flag
          </Button>
        </p>
      )}
      {snoozed && work.snoozed_until && (
        <p>
          <b>Snoozed</b> until <Moment at={work.snoozed_until} />
          <Button small look="quiet" onClick={() => mark.mutate({ snoozed_until: null })}>
            End snooze
          </Button>
        </p>
      )}
      {work.archived_at && (
        <p>
          <b>Archived</b> <Moment at={work.archived_at} />
          <span className="faint">hidden from lists; cannot be continued</span>
        </p>
      )}
      <Problem error={mark.error} />
    </div>
  );
}

export const isSeen = (work: Work): boolean =>
  !!work.seen_at && !!work.ended_at && work.seen_at >= work.ended_at;

/** Notes that the person has looked at how it ended. */
export function useSeen(work: Work): void {
  const { mutate } = useMark(work);
  const unseen = !!work.ended_at && !isSeen(work);
  useEffect(() => {
    if (unseen) mutate({ seen: true });
  }, [unseen, mutate]);
}

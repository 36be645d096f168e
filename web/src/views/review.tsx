import { type FormEvent, type KeyboardEvent, useState } from 'react';
import { isRun, type Work } from '../api/client';
import { actions, useAction } from '../api/queries';
import { counted } from '../model/format';
import { hasEnded } from '../model/work';
import { Button, Problem } from '../parts/controls';
import { Icon } from '../parts/icon';
import { Said } from '../parts/text';
import { useToast } from '../parts/toast';
import { submitOnCommand, withCommand } from '../shell/keys';
import { useLink } from '../shell/link';
import { asMessage, type Comment, placeOf, useComments } from './comments';

/** The field for a comment on a line. */
export function Written(props: { text: string; keep: (text: string) => void; close: () => void }) {
  const [text, setText] = useState(props.text);
  const keep = () => {
    props.keep(text);
    props.close();
  };
  const press = (event: KeyboardEvent) => {
    if (event.key === 'Escape') props.close();
    if (event.key === 'Enter' && (event.metaKey || event.ctrlKey)) keep();
  };
  return (
    <div className="comment">
      <textarea
        // biome-ignore lint/a11y/noAutofocus: it opens where somebody has just asked for it
        autoFocus
        className="field"
        rows={2}
        aria-label="Comment on this line"
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={press}
      />
      <Button small look="primary" hotkey={withCommand('↵')} onClick={keep}>
        Save
      </Button>
      <Button small look="quiet" onClick={props.close}>
        Cancel
      </Button>
    </div>
  );
}

export const Kept = ({ comment, open }: { comment: Comment; open: () => void }) => (
  <div className="comment">
    <button type="button" className="kept" onClick={open} aria-label={`Your comment: ${comment.text}`}>
      <Said>{comment.text}</Said>
    </button>
  </div>
);

/** All comments on a task's changes, which become the next message to its agent. */
export function Review({ work }: { work: Work }) {
  const comments = useComments(work.id);
  const [more, setMore] = useState('');
  const away = useLink().state === 'away';
  const tell = useToast();
  const resume = useAction((message: string) => actions.follow(work.id, message));
  if (comments.all.length === 0) return null;
  const waits = !hasEnded(work) || work.archived_at !== null;
  const send = (event: FormEvent) => {
    event.preventDefault();
    const sent = ({ id }: Work) => {
      comments.clear();
      setMore('');
      const text = isRun(work)
        ? 'Your comments went to a new task on the branch.'
        : 'Your comments are the next message to the agent.';
      tell({ state: 'queued', text, to: `/tasks/${id}` });
    };
    resume.mutate(asMessage(comments.all, more), { onSuccess: sent });
  };
  return (
    <form className="panel review" onSubmit={send}>
      <details>
        <summary>
          <Icon name="right" className="chev" />
          <b>{counted(comments.all.length, 'comment')}</b>
          <span className="faint cut">stored in this browser until you send them</span>
        </summary>
        <ul>
          {comments.all.map((comment) => (
            <li key={placeOf(comment)}>
              <Said className="mono faint">{placeOf(comment)}</Said> <Said>{comment.text}</Said>
            </li>
          ))}
        </ul>
      </details>
      <textarea
        className="field"
        rows={1}
        aria-label="Summary"
        placeholder="Add a summary (optional)"
        value={more}
        onChange={(event) => setMore(event.target.value)}
        onKeyDown={submitOnCommand}
      />
      <Problem error={resume.error} />
      <Button look="quiet" onClick={comments.clear}>
        Discard comments
      </Button>
      <Button type="submit" look="primary" disabled={waits || away || resume.isPending}>
        {resume.isPending ? 'Sending' : 'Send to the agent'}
      </Button>
      {waits && (
        <span className="faint">
          {work.archived_at ? 'Archived: comments cannot be sent.' : 'Can be sent after this attempt.'}
        </span>
      )}
    </form>
  );
}

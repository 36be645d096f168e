import { type FormEvent, useEffect, useId, useRef, useState } from 'react';
import type { Question, Work } from '../api/client';
import { actions, useAction } from '../api/queries';
import { Problem } from '../parts/controls';
import { Prose } from '../parts/prose';
import { Moment, Said } from '../parts/text';
import { Act } from './act';

/** The open questions of work, each with a field for the answer. */
export const Questions = ({ work }: { work: Work }) =>
  work.questions.length > 0 ? (
    work.questions.map((asked) => <OneQuestion key={asked.token} work={work} asked={asked} />)
  ) : (
    <div className="ask">
      <Prose>{work.question ?? work.reason ?? ''}</Prose>
    </div>
  );

/** The work whose question was answered last: its next question gets the focus. */
let lastAnswered: string | null = null;

function OneQuestion({ work, asked }: { work: Work; asked: Question }) {
  const id = useId();
  const [typed, setTyped] = useState('');
  const field = useRef<HTMLInputElement>(null);
  const answer = useAction((text: string) => actions.answer(work.id, asked.token, text));
  useEffect(() => {
    // Who has just answered the question before goes on with this one.
    if (lastAnswered === work.id && document.activeElement === document.body) field.current?.focus();
    lastAnswered = null;
  }, [work.id]);
  const send = (text: string) => {
    lastAnswered = work.id;
    answer.mutate(text);
  };
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (typed.trim()) send(typed.trim());
  };
  const otherwise = asked.default;
  const choices = [...new Set(otherwise ? [...asked.choices, otherwise] : asked.choices)];
  return (
    <form onSubmit={submit}>
      <div className="ask" id={`${id}-ask`}>
        <Prose>{asked.text}</Prose>
      </div>
      {choices.length > 0 && (
        <div className="choices">
          {choices.map((choice) => (
            <Act key={choice} disabled={answer.isPending} onClick={() => send(choice)}>
              <Said>{choice}</Said> {choice === otherwise && <span className="faint">default</span>}
            </Act>
          ))}
        </div>
      )}
      <div className="answer">
        <label className="vh" htmlFor={id}>
          Answer
        </label>
        <input
          ref={field}
          className="field"
          id={id}
          aria-describedby={`${id}-ask`}
          placeholder={choices.length > 0 ? 'Other answer' : 'Your answer'}
          value={typed}
          onChange={(event) => setTyped(event.target.value)}
        />
        <Act type="submit" look="primary" hotkey="↵" disabled={answer.isPending || !typed.trim()}>
          {answer.isPending ? 'Sending' : 'Answer'}
        </Act>
      </div>
      {asked.expires_at && (
        <p className="hint">
          Continues without an answer at <Moment at={asked.expires_at} />
          {otherwise ? ' with default.' : '.'}
        </p>
      )}
      <Problem error={answer.error} />
    </form>
  );
}
